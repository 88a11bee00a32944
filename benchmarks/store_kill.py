"""Kill the writer of a store 200 times at random moments: no finished row may be lost, and none may be wrong."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "inference"))
from test_store import kill_at_random

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        rows = kill_at_random(Path(folder), times=given.times, seed=given.seed)
    print(f"{given.times} kills, {rows} finished rows, none lost, none wrong, {time.monotonic() - start:.0f} s")
