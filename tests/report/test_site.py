"""Generated pages, from results that a test writes itself."""

import csv
import io
import json
import shutil

import pandas as pd
import pytest

from reprolib.errors import ParameterError
from reprolib.evidence.recorded import records
from reprolib.report import ledger, site
from reprolib.report.claims import load_claims
from reprolib.studies import leakage

CELL = "leakage.table1.arena_hard.mistral.gpt_gemini"


def results(project):
    """Write results of the chapter as a run would, from the evidence as it lies in `project`."""
    cells = leakage.table1(draws=200)
    found = []
    for cell in cells.itertuples():
        claim = load_claims()[f"leakage.table1.{cell.Index}"]
        e = cell.estimate
        verdict = ledger.judge_claim(claim, e.value, low=e.low, high=e.high, n=e.n, inputs=cell.inputs)
        found.append(
            ledger.Result(claim_id=claim.id, tier="published", judge="paper", value=e.value, low=e.low, high=e.high,
                          n=e.n, n_unparsed=0, rule=e.rule, seed=0, data={}, verdict=verdict.name,
                          reason=verdict.reason, n_needed=verdict.n_needed, shown=e.text()).model_dump()
        )  # fmt: skip
    path = project / "_build" / "results" / "leakage_main.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"chapter": "leakage_main", "digest": "d", "parameters": {}, "results": found}))


def test_one_changed_published_cell_flips_a_verdict(project):
    results(project)
    assert site.verdicts()[CELL] == "reproduced"
    path = project / "evidence/published/leakage_raw_rates.csv"
    path.write_text(path.read_text().replace("GPT-4o,38.4,34.6,27.0", "GPT-4o,36.4,36.6,27.0", 1))
    results(project)
    assert site.verdicts()[CELL] == "differs"
    others = {k: v for k, v in site.verdicts().items() if k.startswith("leakage.table1.arena_hard") and k != CELL}
    assert set(others.values()) == {"reproduced"}


def test_ledger_lists_every_claim_with_its_denominator(project):
    results(project)
    site.write_pages()
    rows = json.loads((project / "book/generated/ledger.json").read_text())
    assert {r["claim_id"] for r in rows} == set(load_claims())
    assert {r["verdict"] for r in rows if r["claim_id"].startswith("leakage.human")} == {"not attempted"}
    table = list(csv.DictReader(io.StringIO((project / "book/generated/ledger.csv").read_text())))
    assert [r["claim_id"] for r in table] == [r["claim_id"] for r in rows]
    page = (project / "book/generated/ledger.md").read_text()
    assert page.count("<tr ") == len(rows)
    assert site.summary().startswith(f"{len(load_claims())} claims: ")


def test_only_timings_hold_volatile_values(project):
    results(project)
    (project / "_build/timings").mkdir()
    for seconds in (1.0, 2.0):
        (project / "_build/timings/leakage_main.json").write_text(
            json.dumps({"seconds": seconds, "cpu_seconds": seconds, "memory_mb": 1})
        )
        site.write_pages()
        pages = {p.name: p.read_bytes() for p in (project / "book/generated").iterdir()}
        if seconds == 1.0:
            before = pages
    assert {name for name in pages if pages[name] != before[name]} == {"timings.md"}


def test_results_of_a_claim_nobody_registered_are_refused(project):
    results(project)
    path = project / "evidence/claims.toml"
    path.write_text(path.read_text().replace(f'id = "{CELL}"', 'id = "renamed.claim"'))
    with pytest.raises(ParameterError, match="no registered claim"):
        site.verdicts()


def test_the_cost_of_a_served_judge_is_counted_from_every_record(project):
    results(project)
    site.write_pages()
    page = (project / "book/generated/served.md").read_text()
    for study, judge in records():
        table = pd.read_parquet(project / "evidence" / "recorded" / study / f"{judge}.parquet")
        calls = table["prompt_digest"].nunique()
        row = next(line for line in page.splitlines() if line.startswith(f"| {study} ") and f"| {judge} |" in line)
        assert f"| {calls:,} |" in row
        assert f"| {16 * calls:,} |" in row
    assert "| evidence_check | 128 | 14,670 | 2,048 | smollm2-135m |" in page
    shutil.copytree(project / "evidence/recorded/evidence_check", project / "evidence/recorded/another_study")
    site.write_pages()
    assert "| another_study | 128 |" in (project / "book/generated/served.md").read_text()
