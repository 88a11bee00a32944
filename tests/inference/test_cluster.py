"""Many processes, one result: shards and actors fill a store that a single process reads."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reprolib.inference import JudgeError, load_judge
from reprolib.inference.cluster import part_of
from reprolib.inference.store import Store

LABELS = ["1", " 12"]


def _rows_written(folder: Path) -> Counter[str]:
    """How many files of the store hold each finished row."""
    keys = Counter[str]()
    for path in folder.glob("*.sqlite"):
        with sqlite3.connect(path) as database, suppress(sqlite3.OperationalError):  # a file just begun
            keys.update(key for (key,) in database.execute("SELECT key FROM judgments WHERE status = 'done'"))
    return keys


def test_shards_together_are_the_whole_table_in_order() -> None:
    for parts in (1, 3, 64, 100):
        shards = [part_of(64, f"{part}/{parts}") for part in range(1, parts + 1)]
        assert [row for shard in shards for row in shard] == [*range(64)]


@pytest.mark.parametrize("shard", ["0/3", "4/3", "-1/3", "1", "1/", "a/b", "1/3/5", "", "0/0"])
def test_a_shard_that_does_not_exist_is_refused_with_what_is_allowed(shard: str) -> None:
    with pytest.raises(JudgeError, match=f"there is no shard '{shard}'; give i/n with i from 1 to n"):
        part_of(1, shard)


def test_a_shard_computes_its_rows_only_and_the_last_one_sees_all(
    toy_folder: Path, forest: list[str], tmp_path: Path
) -> None:
    alone = load_judge(str(toy_folder)).label_logprobs(forest, LABELS, min_mass=0)
    how: dict[str, Any] = {"min_mass": 0, "store": Store(tmp_path / "s")}
    first = load_judge(str(toy_folder), shard="1/2")
    distinct = len(set(forest))
    with pytest.raises(JudgeError, match=r"shard 1/2 is done; \d+ rows of the others are not"):
        first.label_logprobs(forest, LABELS, **how)
    assert len(_rows_written(tmp_path / "s")) == len(set(forest[:32]))
    with pytest.raises(JudgeError, match="shard 1/2 is done"):  # again: nothing new
        first.label_logprobs(forest, LABELS, **how)
    both = load_judge(str(toy_folder), shard="2/2").label_logprobs(forest, LABELS, **how)
    assert _rows_written(tmp_path / "s") == Counter(dict.fromkeys(_rows_written(tmp_path / "s"), 1))
    assert len(_rows_written(tmp_path / "s")) == distinct
    pd.testing.assert_frame_equal(both.filter(like="logp_"), alone.filter(like="logp_"), rtol=0, atol=1e-5)
    with pytest.raises(JudgeError, match="a shard needs a store"):
        first.label_logprobs(forest, LABELS, min_mass=0)


_SHARD = """
import sys, time
from reprolib.inference import load_judge, torch_judge
from reprolib.inference.store import Store
folder, store, shard, pause = sys.argv[1:]
torch_judge.PACK["cpu"] = 64
judge = load_judge(folder, shard=shard)
forward = judge.engine._forward
judge.engine._forward = lambda *a, **k: (time.sleep(float(pause)), forward(*a, **k))[1]
prompts = [line for line in sys.stdin.read().split("\\0")]
judge.label_logprobs(prompts, ["1", " 12"], min_mass=0, store=Store(store))
"""


@pytest.mark.slow
def test_two_shards_at_once_one_killed_and_started_again(toy_folder: Path, forest: list[str], tmp_path: Path) -> None:
    def start(shard: str, pause: float) -> subprocess.Popen[bytes]:
        arguments = [str(toy_folder), str(tmp_path / "s"), shard, str(pause)]
        process = subprocess.Popen(
            [sys.executable, "-c", _SHARD, *arguments], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdin
        process.stdin.write("\0".join(forest).encode())
        process.stdin.close()
        return process

    one, two = start("1/2", 0.0), start("2/2", 0.4)
    one.wait(timeout=120)
    deadline = time.monotonic() + 120
    while len(_rows_written(tmp_path / "s")) <= len(set(forest[:32])) and time.monotonic() < deadline:
        time.sleep(0.2)
    two.kill()
    two.wait()
    kept = len(_rows_written(tmp_path / "s"))
    assert start("2/2", 0.0).wait(timeout=120) == 0  # it finds all other rows, and succeeds
    rows = _rows_written(tmp_path / "s")
    assert len(rows) == len(set(forest)) > kept
    assert max(rows.values()) == 1
    alone = load_judge(str(toy_folder)).label_logprobs(forest, LABELS, min_mass=0)
    spread = load_judge(str(toy_folder)).label_logprobs(forest, LABELS, min_mass=0, store=Store(tmp_path / "s"))
    assert spread.attrs["run"]["rows_computed"] == 0
    pd.testing.assert_frame_equal(spread.filter(like="logp_"), alone.filter(like="logp_"), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_ray_pool_gives_what_one_process_gives_though_a_worker_is_killed(
    toy_folder: Path, forest: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from reprolib.inference import cluster

    monkeypatch.setattr(cluster, "_BATCH", 8)
    prompts = [f"{n}. {prompt}" for n in range(6) for prompt in sorted(set(forest))]
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        judge = load_judge(str(toy_folder), ray="local")
        killer = subprocess.Popen([sys.executable, "-c", _KILLER, str(tmp_path / "s")], stdout=subprocess.PIPE)
        spread = judge.label_logprobs(prompts, LABELS, min_mass=0, store=Store(tmp_path / "s"))
        assert killer.communicate(timeout=120)[0].strip() == b"killed"
    finally:
        ray.shutdown()
    alone = load_judge(str(toy_folder)).label_logprobs(prompts, LABELS, min_mass=0)
    assert spread["item"].tolist() == alone["item"].tolist()
    pd.testing.assert_frame_equal(spread.filter(like="logp_"), alone.filter(like="logp_"), rtol=0, atol=1e-5)
    rows = _rows_written(tmp_path / "s")
    assert len(rows) == len(prompts)
    assert sum(rows.values()) - len(rows) <= 2 * 8  # computed again: at most what was in flight
    assert len([*(tmp_path / "s").glob("*.sqlite")]) >= 2  # a file for each writer


_KILLER = """
import os, signal, sys, time
from pathlib import Path
folder, end = Path(sys.argv[1]), time.monotonic() + 100
while time.monotonic() < end:
    for path in sorted(folder.glob("*.sqlite")):
        if path.stat().st_size + sum(p.stat().st_size for p in folder.glob(path.name + "-wal")) > 20000:
            os.kill(int(path.stem.split("-")[-2]), signal.SIGKILL)
            print("killed")
            sys.exit()
    time.sleep(0.02)
"""
