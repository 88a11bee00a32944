"""A record is believed only if table, manifest and schema agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reprolib.errors import EvidenceError
from reprolib.evidence import PAIRWISE, recorded


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "claims.toml").write_text("")
    monkeypatch.setenv("REPROLIB_ROOT", str(tmp_path))
    return tmp_path / "evidence" / "recorded"


def table() -> pd.DataFrame:
    fixed = {"study": "s", "judge": "j", "condition": "c", "arm": "", "repetition": 0, "author_a": "x", "author_b": "y"}
    rows = [{"pair_id": "p", "cluster_id": "p", "order": order, "verdict": "A"} for order in (0, 1)]
    return pd.DataFrame(rows).assign(**fixed, n_tokens=3, prompt_digest="d", logp_1=[-0.125, -1 / 3])


def write(**changes: Any) -> recorded.Record:
    about: dict[str, Any] = {"study": "s", "judge": "j", "origin": "o", "weights": "w", "dtype": "float32"}
    about |= {"versions": {}, "hardware": "cpu", "seconds": 1.0, "date": "2026-01-01", "command": "c"}
    return recorded.write_record(table(), PAIRWISE, **about | changes)


def test_a_record_comes_back_bit_for_bit(project: Path) -> None:
    written, read = write(), recorded.read_record("s", "j", PAIRWISE)
    pd.testing.assert_frame_equal(read.table, table(), check_exact=True)
    assert read.manifest == written.manifest
    assert recorded.records() == [("s", "j")]
    assert sorted(path.name for path in (project / "s").iterdir()) == ["j.json", "j.parquet"]


def test_a_table_changed_after_recording_is_refused(project: Path) -> None:
    write()
    table().assign(verdict="B").to_parquet(project / "s" / "j.parquet")
    with pytest.raises(EvidenceError, match="not the table its manifest describes"):
        recorded.read_record("s", "j", PAIRWISE)


def test_a_missing_record_names_those_there_are(project: Path) -> None:
    write()
    with pytest.raises(EvidenceError, match="no record s/k; recorded: s/j"):
        recorded.read_record("s", "k", PAIRWISE)
