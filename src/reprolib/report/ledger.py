"""Record a result for a registered claim and show it: `check` in a notebook, `collect` afterwards.

A result lives in the output of the cell that made it, as JSON beside the line a reader sees. So an executed notebook
carries its own results, wherever it was run, and a killed run leaves none behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict

from reprolib.errors import ClaimError, suggest
from reprolib.metrics import printed_interval
from reprolib.metrics.resampling import Estimate
from reprolib.report.claims import MARKS, Claim, Tier, judge_claim, load_claims
from reprolib.report.page import render, show_html

MIME = "application/vnd.reprolib.results+json"


class Result(BaseModel):
    """One checked claim: our value in the claim's unit, its interval, what it rests on, and the verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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

    @property
    def key(self) -> tuple[str, str, str]:
        """What a result is unique by: claim, tier, judge."""
        return self.claim_id, self.tier, self.judge

    @property
    def anchor(self) -> str:
        """The HTML id of its row."""
        return anchor(*self.key)


_open_table: list[Result] | None = None


def check(
    claim_id: str, value: float | Estimate, *, low: float | None = None, high: float | None = None,
    n: int | None = None, tier: Tier = "published", judge: str = "paper", n_unparsed: int = 0,
    inputs: tuple[float, float] | None = None, rule: str = "", seed: int | None = None,
    data: dict[str, str] | None = None,
) -> Result:  # fmt: skip
    """Judge `value` by the criterion of the claim, record the result in the cell's output and show one line.

    `value` is in the claim's unit: a number with `low`, `high`, `n`, `rule` and `seed`, or an `Estimate` that brings
    them along. `judge` is "paper" for the paper's own judgments; anything else is a replication. `inputs` is what
    rounded inputs allow (`metrics.allowed_by_rounding`), `n_unparsed` counts judgments without a verdict,
    `data` holds the SHA-256 of released files by name. Raises ClaimError if the claim is not registered.
    """
    claim, jitter = registered(claim_id), 0.0
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
    """How a learner's number compares with the paper's: a sentence, never just right or wrong.

    >>> grade("leakage.table8.worked_example", 18.42)
    'Right: your 18.42 prints as 18.4 %, the published value.'
    """
    claim = registered(claim_id)
    if claim.value is None:
        raise ClaimError(f"{claim_id} has no published number to compare with", hint="choose a count, rate or size")
    low, high = printed_interval(claim.value, claim.decimals)
    if low <= answer < high:
        return f"Right: your {answer:g} prints as {claim.printed}, the published value."
    steps = abs(answer - claim.value) * 10**claim.decimals
    return f"Not yet: your {answer:g} is {steps:.0f} printed digits away from {claim.printed}."


def collect(notebook: dict[str, Any]) -> list[Result]:
    """All results in the outputs of an executed notebook (a parsed ipynb), in order.

    Raises ClaimError if one (claim, tier, judge) has two results, or a result fits no registered claim.
    """
    found: dict[tuple[str, str, str], Result] = {}
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    for result in [Result(**entry) for output in outputs for entry in output.get("data", {}).get(MIME, [])]:
        registered(result.claim_id)
        if result.key in found:
            raise ClaimError(f"two results for {' / '.join(result.key)}", hint="check each claim once")
        found[result.key] = result
    return list(found.values())


def registered(claim_id: str) -> Claim:
    """The claim of this id; ClaimError, with close ids, if there is none."""
    known = load_claims()
    if claim_id not in known:
        hint = suggest(claim_id, known, otherwise="register it in evidence/claims.toml first")
        raise ClaimError(f"claim {claim_id!r} is not registered", hint=hint)
    return known[claim_id]


def anchor(claim_id: str, tier: str = "", judge: str = "paper") -> str:
    """The HTML id of a result's row: the claim's alone for the paper's own judgments, else with tier and judge.

    >>> anchor("leakage.table1.most_pairs"), anchor("a.b", "live", "qwen 1.5b")
    ('claim-leakage-table1-most-pairs', 'claim-a-b-live-qwen-1-5b')
    """
    parts = [claim_id] if judge == "paper" else [claim_id, tier, judge]
    return "claim-" + re.sub(r"[^a-z0-9]+", "-", ".".join(parts).lower())


def _display(results: list[Result]) -> None:
    """Show results as a table, one row a claim, each row an anchor named after its claim."""
    rows = [(registered(r.claim_id), r) for r in results]
    said = [(f"{MARKS[r.verdict]} {r.verdict}: {c.statement} Paper {c.printed}, here {r.shown}", r) for c, r in rows]
    plain, data = "\n".join(f"{text}. {r.reason}." for text, r in said), [r.model_dump() for r in results]
    show_html(render("claims.html.j2", rows=rows), plain=plain, extra={MIME: data})
