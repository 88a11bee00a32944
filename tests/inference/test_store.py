"""The store against sudden death, damage, and a second writer."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reprolib.inference.store import Store, row_key

WRITER = """
import sys
from reprolib.inference.store import Store
store = Store(sys.argv[1])
have = store.get([f"k{i}" for i in range(3_000)])
i = len(have)
while True:
    store.put({f"k{i}": {"square": i * i}}, device="cpu")
    print(i, flush=True)  # from here on the row counts as finished
    i += 1
"""


def kill_at_random(folder: Path, *, times: int, seed: int) -> int:
    """Start a writer and kill it, `times` times; return how many rows it reported as finished. Lost or wrong: fail."""
    rng = random.Random(seed)
    finished = 0
    for _ in range(times):
        run = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        run.stdout.readline()  # it is writing now
        time.sleep(rng.uniform(0, 0.05))
        os.kill(run.pid, signal.SIGKILL)
        reported = [int(line) for line in run.stdout.read().split()]
        run.wait()
        finished = max([finished, *(number + 1 for number in reported)])
        found = Store(folder).get([f"k{i}" for i in range(finished + 5)])
        assert all(value == {"square": int(key[1:]) ** 2} for key, value in found.items())
        assert {f"k{i}" for i in range(finished)} <= set(found)
        finished = len(found)  # the next writer goes on after the last row on disk
    return finished


def test_twenty_kills_lose_no_finished_row_and_leave_no_wrong_one(tmp_path: Path) -> None:
    assert kill_at_random(tmp_path, times=20, seed=1) >= 20
    assert len(list(tmp_path.glob("*.sqlite"))) == 20


def test_two_writers_are_read_as_one(tmp_path: Path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    first.put({"a": {"x": 1}}, device="cpu")
    second.put({"b": {"x": 2}}, device="cuda")
    assert Store(tmp_path).get(["b", "a", "c"]) == {"a": {"x": 1}, "b": {"x": 2}}
    assert len(list(tmp_path.glob("*.sqlite"))) == 2


def test_a_row_changed_on_disk_is_found_and_is_missing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put({"a": {"x": 1}, "b": {"x": 2}}, device="cpu")
    store._writer.close()
    (path,) = tmp_path.glob("*.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("""UPDATE judgments SET value = '{"x": 7}' WHERE key = 'a'""")
    reader = Store(tmp_path)
    assert reader.get(["a", "b"]) == {"b": {"x": 2}}
    assert reader.damaged == [f"{path.name}: row a does not match its checksum"]


@pytest.mark.parametrize("offset", [0, 5000, 20_000, 40_000])
def test_a_file_damaged_anywhere_never_yields_a_wrong_row(tmp_path: Path, offset: int) -> None:
    store = Store(tmp_path)
    rows = {f"k{i}": {"square": i * i} for i in range(300)}
    store.put(rows, device="cpu")
    store._writer.close()
    (path,) = tmp_path.glob("*.sqlite")
    data = bytearray(path.read_bytes())
    data[offset : offset + 3000] = random.Random(offset).randbytes(3000)
    path.write_bytes(data)
    reader = Store(tmp_path)
    found = reader.get(rows)
    assert reader.damaged or found == rows
    assert all(rows[key] == value for key, value in found.items())
    reader.put(rows, device="cpu")
    assert Store(tmp_path).get(rows) == rows


def test_a_failed_row_is_missing_until_it_is_finished(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put({"a": "out of memory"}, device="cuda", status="failed")
    assert store.get(["a"]) == {}
    (path,) = tmp_path.glob("*.sqlite")
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT status, value FROM judgments").fetchall() == [("failed", '"out of memory"')]
    store.put({"a": {"x": 1}}, device="cuda")
    assert store.get(["a"]) == {"a": {"x": 1}}


def test_any_change_of_what_determines_a_result_changes_its_key() -> None:
    fields = {"ids": (1, 2), "labels": [[3]], "weights": "w", "dtype": "float32", "seed": 0}
    changes = [{"ids": (1, 2, 3)}, {"labels": [[4]]}, {"weights": "v"}, {"dtype": "bfloat16"}, {"seed": 1}]
    keys = {row_key(**fields | change) for change in [{}, *changes]}
    assert len(keys) == 6
