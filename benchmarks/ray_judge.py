"""Throughput of `--ray local` beside as many plain processes, a shard each, for the same work: see README.md.

Both start from nothing: what is compared is what a user waits for, the start of Ray included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

COMMAND = "import sys; from reprolib.cli import main; sys.exit(main())"
FRAME = """Each item of the list has a score, 1 or 2.

{lines}
Item {number}, the {thing}, seen last; score="""
THINGS = ("apple", "bridge", "candle", "door", "engine")


def prompts(count: int) -> list[dict[str, str]]:
    """Rows of about 200 tokens, neighbours sharing most of them."""
    rows = []
    for n in range(count):
        block = range(12 * (n // 8), 12 * (n // 8) + 12)
        before = "\n".join(f"Item {k}, seen, counted and written down; score={1 + k % 2}" for k in block)
        rows.append({"id": str(n), "prompt": FRAME.format(lines=before, number=n, thing=THINGS[n % 5])})
    return rows


def start(folder: Path, name: str, judge: str, *options: str) -> subprocess.Popen[bytes]:
    arguments = ["judge", "prompts.jsonl", f"{name}.parquet", "--labels", "1,2", "--judge", judge, *options]
    log = (folder / f"{name}.log").open("wb")
    return subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], cwd=folder, stdout=log, stderr=log)


def timed(folder: Path, judge: str, jobs: dict[str, tuple[str, ...]]) -> tuple[float, pd.DataFrame]:
    """Seconds until all of `jobs` (name to options), started at once, have ended, and their rows in order."""
    began = time.monotonic()
    started = {name: start(folder, name, judge, *options) for name, options in jobs.items()}
    for name, process in started.items():
        if process.wait():
            sys.exit(f"{name} failed:\n{(folder / name).with_suffix('.log').read_text()[-2000:]}")
    seconds = time.monotonic() - began
    return seconds, pd.concat([pd.read_parquet(folder / f"{name}.parquet") for name in jobs], ignore_index=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judge", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=256, help="an actor takes 64 at once")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="Ray starts an actor for each CPU")
    given = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = prompts(given.prompts)
        (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
        shards = {f"shard{i}": ("--shard", f"{i}/{given.processes}") for i in range(1, given.processes + 1)}
        plain, alone = timed(folder, given.judge, shards)
        ray, spread = timed(folder, given.judge, {"ray": ("--ray", "local")})
        if alone["item"].tolist() != spread["item"].tolist():
            sys.exit("the two ways did not judge the same rows")
        moved = float((alone[["logp_1", "logp_2"]] - spread[["logp_1", "logp_2"]]).abs().to_numpy().max())
    print(f"load {os.getloadavg()[0]:.1f}; {given.prompts} prompts, {given.judge}")
    print(f"{given.processes} processes: {plain:.1f} s, {given.prompts / plain:.2f} prompts/s")
    print(f"Ray: {ray:.1f} s, {given.prompts / ray:.2f} prompts/s")
    print(f"throughput of Ray over that of processes: {plain / ray:.2f}; largest difference of a value: {moved:.1e}")


if __name__ == "__main__":
    main()
