"""`check` records a result for a claim in the output of the cell that made it; `collect` reads an executed notebook."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from reprolib.errors import ChapterError, pick
from reprolib.metrics import printed_interval
from reprolib.metrics.resampling import Estimate
from reprolib.report.claims import MARKS, Claim, Tier, judge_claim, load_claims
from reprolib.report.page import render, show_html

MIME = "application/vnd.reprolib.results+json"


class Result(BaseModel, frozen=True, extra="forbid"):
    """One checked claim: our value in the claim's unit, its interval, what it rests on, and the verdict."""

    claim_id: str
    tier: Tier
    judge: str
    value: float
    low: float | None
    high: float | None
    n: int | None
    n_unparsed: int
    rule: str
    seed: int | None
    data: dict[str, str]
    verdict: str
    reason: str
    n_needed: int | None
    shown: str

    def _ipython_display_(self) -> None:
        """Nothing: `check` has shown the line already."""


_open_table: list[Result] | None = None


def check(
    claim_id: str, value: float | Estimate, *, low: float | None = None, high: float | None = None,
    n: int | None = None, tier: Tier = "published", judge: str = "paper", n_unparsed: int = 0,
    inputs: tuple[float, float] | None = None, rule: str = "", data: dict[str, str] | None = None,
) -> Result:  # fmt: skip
    """Judge `value` by the criterion of the claim, record the result in the cell's output and show one line.

    `value` is in the claim's unit: an `Estimate`, or a number with `low`, `high` and `n`. Any `judge` but "paper" is a
    replication. `inputs` is what rounded inputs allow (`metrics.allowed_by_rounding`), `n_unparsed` counts judgments
    without a verdict, `data` holds the SHA-256 of released files by name.
    """
    claim, jitter, seed = registered(claim_id), 0.0, None
    if isinstance(value, Estimate):
        low, high, n, seed, jitter = value.low, value.high, value.n, value.seed, value.jitter
        rule, value = rule or value.rule, value.value
    other = judge != "paper"
    verdict = judge_claim(claim, value, low=low, high=high, n=n, jitter=jitter, inputs=inputs, replication=other)
    digits = claim.decimals + (claim.kind == "rate")  # one more than the paper prints shows how a rate rounds
    shown = f"{value:g}" if claim.kind == "count" else f"{value:z.{digits}f}"
    if claim.kind != "count" and low is not None and high is not None:
        shown = Estimate(value, low, high, 0).text(digits)
    result = Result(
        claim_id=claim_id, tier=tier, judge=judge, value=value, low=low, high=high, n=n, n_unparsed=n_unparsed,
        rule=rule, seed=seed, data=data or {}, verdict=verdict.name, reason=verdict.reason, n_needed=verdict.n_needed,
        shown=shown,
    )  # fmt: skip
    if _open_table is None:
        _display([result])
    else:
        _open_table.append(result)
    return result


@contextmanager
def table() -> Iterator[list[Result]]:
    """Show all checks made inside as one table instead of a line each."""
    global _open_table
    rows = _open_table = []
    try:
        yield rows
    finally:
        _open_table = None
    _display(rows)


def grade(claim_id: str, answer: float) -> str:
    """How a learner's number compares with the published one: a sentence, never just right or wrong.

    >>> grade("leakage.table8.worked_example", 18.42)
    'Right: your 18.42 prints as 18.4 %, the published value.'
    """
    claim = registered(claim_id)
    value = claim.value or 0.0
    low, high = printed_interval(value, claim.decimals)
    if low <= answer < high:
        return f"Right: your {answer:g} prints as {claim.printed}, the published value."
    steps = abs(answer - value) * 10**claim.decimals
    return f"Not yet: your {answer:g} is {steps:.0f} printed digits away from {claim.printed}."


def collect(notebook: dict[str, Any]) -> list[Result]:
    """Every result in an executed notebook, in order; ChapterError for two of one (claim, tier, judge)."""
    outputs = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])]
    found = [Result(**entry) for data in outputs for entry in data.get(MIME, [])]
    times = Counter((r.claim_id, r.tier, r.judge) for r in found)
    if twice := [" / ".join(key) for key in times if times[key] > 1]:
        raise ChapterError(f"two results for {twice[0]}", hint="check each claim once")
    return found


def registered(claim_id: str) -> Claim:
    """The claim of this id; ParameterError, with close ids, if there is none."""
    return pick("registered claim", claim_id, load_claims())


def anchor(claim_id: str, tier: str = "", judge: str = "paper") -> str:
    """The HTML id of a result's row: the claim's alone for the paper's own judgments, else with tier and judge.

    >>> anchor("leakage.table1.most_pairs"), anchor("a.b", "live", "qwen 1.5b")
    ('claim-leakage-table1-most-pairs', 'claim-a-b-live-qwen-1-5b')
    """
    parts = [claim_id] if judge == "paper" else [claim_id, tier, judge]
    return "claim-" + re.sub(r"[^a-z0-9]+", "-", ".".join(parts).lower())


def _display(results: list[Result]) -> None:
    """Show results as a table, one row a claim, each row an anchor named after its claim."""
    rows = [(registered(r.claim_id), r, anchor(r.claim_id, r.tier, r.judge)) for r in results]
    said = [f"{r.verdict}: {c.statement} Paper {c.printed}, here {r.shown}. {r.reason}." for c, r, _ in rows]
    plain = "\n".join(f"{MARKS[r.verdict]} {text}" for r, text in zip(results, said, strict=True))
    show_html(render("claims.html.j2", rows=rows), plain=plain, extra={MIME: [r.model_dump() for r in results]})
