"""The chapters of the book and the parameters each accepts: the one list that the runner and the notebooks share.

What is allowed stands here; a notebook's parameters cell repeats names and defaults, so that plain papermill works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from reprolib.errors import ParameterError, suggest
from reprolib.metrics.correlation import Coefficient
from reprolib.metrics.leakage import TieRule


class Parameters(BaseModel):
    """Parameters of every chapter that resamples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(20250206, ge=0, le=2**32 - 1, description="seeds every resampling draw")
    draws: int = Field(10_000, ge=100, le=1_000_000, description="resampling draws behind each interval")


class LeakageParameters(Parameters):
    """A leakage chapter: the rule for ties, and a lab run of the reader's own beside the paper."""

    tie_rule: TieRule = Field("strict", description="how a tie counts in a win rate")
    lab: Annotated[Path | None, BeforeValidator(lambda given: None if given in ("", "None") else given)] = Field(
        None, description="folder of a leakage lab run to show beside the paper"
    )


class LeakageTableParameters(LeakageParameters):
    """A leakage chapter whose rates are not released, so that the noise of its scores is an assumption."""

    noise: float = Field(1.0, ge=0.25, le=4, description="multiplies the sampling noise assumed for a score")


class SimulationParameters(Parameters):
    """A simulated lab: what is planted."""

    draws: int = Field(2_000, ge=100, le=1_000_000, description="resampling draws behind each interval")
    weight: float = Field(0.5, ge=0, le=2, description="nats of preference per nat of familiarity")
    mixing: float = Field(1.0, ge=0, le=1, description="share of the training texts that the teacher wrote")
    questions: int = Field(500, ge=50, le=20_000, description="questions both judges see")


class ScoreRangeParameters(Parameters):
    """A judge's digit logits on SummEval in four ranges."""

    draws: int = Field(2_000, ge=100, le=1_000_000, description="resampling draws behind each interval")
    judge: str = Field("qwen2.5-coder-1.5b", description="a judge with a record of all four ranges")
    smaller: str = Field("qwen2.5-coder-0.5b", description="a smaller one of the same family: comparison, assistant")
    aspect: Literal["coherence", "consistency", "relevance"] = Field("coherence", description="what is rated")
    prompt_set: Literal["own", "original"] = Field("own", description="whose wording the judge saw")


class ContrastParameters(ScoreRangeParameters):
    """The chapter on contrastive decoding."""

    other: str = Field("smollm2-135m", description="an assistant of another family, shown if it has a record")
    penalty: float = Field(1.0, ge=1, le=2, description="repetition penalty of greedy decoding")
    coefficient: Coefficient = Field("spearman", description="which correlation with the experts")


class EvidenceCheckParameters(Parameters):
    """The check of recorded judgments."""

    rows: int = Field(8, ge=1, le=128, description="how many rows to judge again")
    judge: str = Field("smollm2-135m", description="a judge with a record here, or openai:MODEL@BASE_URL")


CHAPTERS: dict[str, type[Parameters]] = {
    "leakage_main": LeakageParameters,
    "leakage_relatedness": LeakageTableParameters,
    "leakage_learning_method": LeakageTableParameters,
    "leakage_size_and_mixing": LeakageTableParameters,
    "leakage_recognition": Parameters,
    "leakage_categories": Parameters,
    "leakage_leaderboard": Parameters,
    "leakage_mechanism": SimulationParameters,
    "score_range_bias": ScoreRangeParameters,
    "contrastive_decoding": ContrastParameters,
    "evidence_check": EvidenceCheckParameters,
}


def validate(chapter: str, values: Mapping[str, Any]) -> Parameters:
    """The parameters of a chapter with defaults filled in; text from a command line is read as its type.

    Raises ParameterError for an unknown chapter or name, a wrong type or a value that is not allowed.

    >>> validate("leakage_main", {"draws": "500"}).draws
    500
    """
    if chapter not in CHAPTERS:
        raise ParameterError(f"no chapter {chapter!r}", hint=suggest(chapter, CHAPTERS))
    fields = CHAPTERS[chapter].model_fields
    if unknown := [name for name in values if name not in fields]:
        raise ParameterError(f"{chapter} has no parameter {unknown[0]!r}", hint=suggest(unknown[0], fields))
    try:
        return CHAPTERS[chapter](**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        message = f"{chapter}: {name} is {first['input']!r}: {first['msg']}"
        raise ParameterError(message, hint=f"{name}: {fields[name].description}") from None


def check_parameters(chapter: str, namespace: Mapping[str, Any]) -> Any:
    """Validate a notebook's own parameters; call it as `p = check_parameters("leakage_main", globals())`.

    Names that papermill injected and the chapter does not know are errors: papermill itself only logs them.
    """
    injected = "".join(cell for cell in namespace.get("In", []) if cell.startswith("# Parameters"))
    fields = CHAPTERS[chapter].model_fields if chapter in CHAPTERS else ()
    names = {*fields, *re.findall(r"^(\w+) = ", injected, re.MULTILINE)}
    return validate(chapter, {name: namespace[name] for name in names if name in namespace})


def describe(chapter: str) -> str:
    """The chapter's parameters, one a line: name, default, allowed values, meaning."""
    lines = []
    for name, about in CHAPTERS[chapter].model_json_schema()["properties"].items():
        allowed = f" ({about['minimum']:,} to {about['maximum']:,})" if "minimum" in about else ""
        allowed = f" ({', '.join(about['enum'])})" if "enum" in about else allowed
        lines.append(f"  {name} = {about['default']!r}{allowed}: {about['description']}")
    return "\n".join(lines)
