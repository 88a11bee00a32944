"""The chapters of the book and the parameters each accepts; a notebook repeats their names and defaults."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, create_model

from reprolib.errors import ParameterError, pick
from reprolib.metrics.correlation import Coefficient
from reprolib.metrics.leakage import TieRule

Draws = Annotated[int, Field(ge=100, le=1_000_000, description="resampling draws behind each interval")]
Folder = Annotated[Path | None, BeforeValidator(lambda given: None if given in ("", "None") else given)]


class Parameters(BaseModel, frozen=True, extra="forbid"):
    """Parameters of every chapter that resamples."""

    seed: int = Field(20250206, ge=0, le=2**32 - 1, description="seeds every resampling draw")
    draws: Draws = 10_000


_LEAKAGE: dict[str, Any] = {
    "tie_rule": (TieRule, Field("strict", description="how a tie counts in a win rate")),
    "lab": (Folder, Field(None, description="folder of a leakage lab run to show beside the paper")),
}
_NOISE = Field(1.0, ge=0.25, le=4, description="multiplies the sampling noise assumed for a score")
_NOISY: dict[str, Any] = _LEAKAGE | {"noise": (float, _NOISE)}
_SCORES: dict[str, Any] = {
    "draws": (Draws, 2_000),
    "judge": (str, Field("qwen2.5-coder-1.5b", description="a judge with a record of all four ranges")),
    "smaller": (str, Field("qwen2.5-coder-0.5b", description="a smaller one of its family: comparison, assistant")),
    "aspect": (Literal["coherence", "consistency", "relevance"], Field("coherence", description="what is rated")),
    "prompt_set": (Literal["own", "original"], Field("own", description="whose wording the judge saw")),
}
_CHAPTERS: dict[str, dict[str, Any]] = {
    "leakage_main": _LEAKAGE,
    "leakage_relatedness": _NOISY,
    "leakage_learning_method": _NOISY,
    "leakage_size_and_mixing": _NOISY,
    "leakage_recognition": {},
    "leakage_categories": {},
    "leakage_leaderboard": {},
    "leakage_mechanism": {
        "draws": (Draws, 2_000),
        "weight": (float, Field(0.5, ge=0, le=2, description="nats of preference per nat of familiarity")),
        "mixing": (float, Field(1.0, ge=0, le=1, description="share of the training texts that the teacher wrote")),
        "questions": (int, Field(500, ge=50, le=20_000, description="questions both judges see")),
    },
    "score_range_bias": _SCORES,
    "contrastive_decoding": _SCORES | {
        "other": (str, Field("smollm2-135m", description="an assistant of another family, shown if it has a record")),
        "penalty": (float, Field(1.0, ge=1, le=2, description="repetition penalty of greedy decoding")),
        "coefficient": (Coefficient, Field("spearman", description="which correlation with the experts")),
    },
    "overlap_bias": {
        "draws": (Draws, 1_000),
        "temperature": (float, Field(0.7, gt=0, le=2, description="at which recorded log-probabilities become shares")),
        "full_curve": (bool, Field(False, description="every combination of the choices, not a dozen variants")),
    },
    "evidence_check": {
        "rows": (int, Field(8, ge=1, le=128, description="how many rows to judge again")),
        "judge": (str, Field("smollm2-135m", description="a judge with a record here, or openai:MODEL@BASE_URL")),
    },
}  # fmt: skip
CHAPTERS = {chapter: create_model(chapter, __base__=Parameters, **fields) for chapter, fields in _CHAPTERS.items()}


def validate(chapter: str, values: Mapping[str, Any]) -> Parameters:
    """The parameters of a chapter with defaults filled in, else ParameterError; text is read as its type."""
    model = pick("chapter", chapter, CHAPTERS)
    fields = {name: pick("parameter", name, model.model_fields) for name in values}
    try:
        return model(**values)
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
    names = {*CHAPTERS[chapter].model_fields, *re.findall(r"^(\w+) = ", injected, re.MULTILINE)}
    return validate(chapter, {name: namespace[name] for name in names if name in namespace})
