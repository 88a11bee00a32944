"""A copy of the project's small files, so that a test can break them; the mirror of released data, if there is one."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A throw-away project root with the real evidence and notebooks; `REPROLIB_ROOT` points at it."""
    for folder in ("evidence", "notebooks", "book/_templates", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns(".store"))
    for file in ("constraints.txt", "_config.yml", "_toc.yml"):
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "src").mkdir()
    monkeypatch.setenv("REPROLIB_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def mirror() -> Path:
    folder = os.environ.get("REPROLIB_MIRROR")
    if not folder:
        pytest.skip("REPROLIB_MIRROR is not set: the released data is not at hand")
    return Path(folder)
