"""Claims, each registered in `evidence/claims.toml` before it is run, and the rules for the six verdicts."""

import functools
import math
import tomllib
from collections import Counter
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from reprolib.errors import EvidenceError
from reprolib.metrics import printed_interval
from reprolib.project import evidence_dir

Tier = Literal["published", "public", "recorded", "live"]
VERDICTS = ("reproduced", "consistent", "differs", "inconclusive", "not attempted", "paper unclear")
MARKS = dict(zip(VERDICTS, "✓≈✗?–¿", strict=True))  # shape beside colour, so that colour is never alone


class Claim(BaseModel, frozen=True, extra="forbid"):
    """One registered claim.

    `kind` fixes the criterion. "count": equal. "rate": recomputed from the same inputs, so equal to the printed digits
    (widened by at most `slack` for the rounding of the inputs). "size": the interval holds the printed value and is
    narrower than `width`. "sign" and "order": the interval lies beyond `null`, on the side `direction` names.
    """

    id: str = Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")
    paper: str
    locator: str
    statement: str
    kind: Literal["count", "rate", "size", "sign", "order"]
    value: float | None = None
    decimals: int = Field(0, ge=0)
    unit: str = ""
    slack: float = Field(0.0, ge=0)
    width: float | None = Field(None, gt=0)
    null: float = 0.0
    direction: Literal["above", "below"] = "above"
    notebook: str | None = None
    tier: Tier = "published"
    source: Literal["primary", "secondary"] = "primary"
    not_attempted: str = "no chapter yet"
    unclear: str = ""

    @model_validator(mode="after")
    def _criterion_is_complete(self) -> Self:
        number = not self.unclear and self.kind not in ("sign", "order")
        if number and self.value is None:
            raise ValueError(f"a {self.kind} needs the published value")
        if number and self.kind == "size" and self.width is None:
            raise ValueError("a size needs the width of an interval that would be informative")
        return self

    @property
    def printed(self) -> str:
        """The published value as printed, such as ``-1.5 %``; for a sign or an order, what is claimed."""
        number = f"{self.direction} {self.null:g}" if self.value is None else f"{self.value:.{self.decimals}f}"
        return f"{number} {self.unit}".rstrip()


class Verdict(NamedTuple):
    """One of `VERDICTS`, why, and, if inconclusive, about how many units would tell."""

    name: str
    reason: str
    n_needed: int | None = None


def load_claims() -> dict[str, Claim]:
    """Every registered claim by id, in file order; EvidenceError for an id given twice or an entry unlike `Claim`."""
    return dict(_parsed((evidence_dir() / "claims.toml").read_text()))


@functools.cache  # a chapter looks up claims at every check; the text is the key, so that a changed file is read again
def _parsed(text: str) -> dict[str, Claim]:
    entries = tomllib.loads(text).get("claim", [])
    try:
        claims = TypeAdapter(list[Claim]).validate_python(entries)
    except ValidationError as error:
        number, *field = error.errors()[0]["loc"]
        message = f"claims.toml, claim {entries[number].get('id')}: {field or 'entry'}: {error.errors()[0]['msg']}"
        raise EvidenceError(message, hint=f"fields: {', '.join(Claim.model_fields)}") from None
    if twice := [claim_id for claim_id, times in Counter(c.id for c in claims).items() if times > 1]:
        raise EvidenceError(f"claim {twice[0]} is registered twice", hint="rename the second one, or delete it")
    return {c.id: c for c in claims}


def judge_claim(
    claim: Claim, value: float, *, low: float | None = None, high: float | None = None, n: int | None = None,
    jitter: float = 0.0, inputs: tuple[float, float] | None = None, replication: bool = False,
) -> Verdict:  # fmt: skip
    """The verdict for a value and its interval, by the criterion registered for the claim.

    `low`, `high` and `n` are the value's interval and the units behind it; `jitter` is the standard error of the
    interval's ends from finitely many draws, since no verdict may hang on a seed; `inputs` is what rounded inputs
    allow; a `replication`, by other judges or models than the paper's, is never "reproduced".
    """
    if claim.unclear:
        return Verdict("paper unclear", claim.unclear)
    if not math.isfinite(value):
        return Verdict("inconclusive", "the statistic is undefined (0/0) on this evidence")
    if claim.value is not None and claim.kind in ("count", "rate") and not replication:
        return _same_inputs(claim, claim.value, value, inputs or (value, value))
    if low is None or high is None or n is None or not math.isfinite(high - low):
        return Verdict("inconclusive", "no interval to judge by")
    if claim.kind in ("sign", "order"):
        return _beyond_null(claim, value, low, high, n, 2 * jitter)
    if claim.width is None or claim.value is None:
        return Verdict("inconclusive", "no informative width is registered for a replication of this claim")
    least, most = printed_interval(claim.value, claim.decimals)
    if high < least or low >= most:
        return Verdict("differs", "the interval excludes the paper's value")
    if high - low <= claim.width:
        return Verdict("consistent", f"the interval holds the paper's value and is narrower than {claim.width:g}")
    need = math.ceil(n * ((high - low) / claim.width) ** 2)
    return Verdict("inconclusive", f"the interval is wider than {claim.width:g}", need)


def _same_inputs(claim: Claim, printed: float, value: float, inputs: tuple[float, float]) -> Verdict:
    if claim.kind == "count":
        differs = Verdict("differs", f"{value:g} is not {printed:g}")
        return Verdict("reproduced", "equal") if value == printed else differs
    low, high = printed_interval(printed, claim.decimals)
    if low - 1e-9 <= value < high:
        return Verdict("reproduced", "equal to the printed digits")
    least, most = max(inputs[0], value - claim.slack), min(inputs[1], value + claim.slack)  # slack caps the excuse
    allowed = f"rounded inputs allow {least:.2f} to {most:.2f}"
    if least < high and most >= low:
        return Verdict("reproduced", allowed)
    return Verdict("differs", f"prints as {value:.{claim.decimals}f}; {allowed}")


def _beyond_null(claim: Claim, value: float, low: float, high: float, n: int, margin: float) -> Verdict:
    sign = 1 if claim.direction == "above" else -1
    near, far = sorted((sign * (low - claim.null), sign * (high - claim.null)))
    null, distance = f"{claim.null:g} {claim.unit}".rstrip(), abs(value - claim.null)
    if near > margin:
        return Verdict("consistent", f"the whole interval is {claim.direction} {null}")
    if far < -margin:
        return Verdict("differs", f"the whole interval lies on the other side of {null}")
    need = math.ceil(n * ((high - low) / 2 / distance) ** 2) if distance else None
    at_end = f"the interval ends at {null}: on which side depends on the seed"
    return Verdict("inconclusive", at_end if near > -margin or far < margin else f"the interval includes {null}", need)
