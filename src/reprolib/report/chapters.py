"""The chapters of the book and the parameters each accepts, from `parameters.toml`."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, create_model

from reprolib.errors import ParameterError, pick

Folder = Annotated[Path | None, BeforeValidator(lambda given: None if given in ("", "None") else given)]


class Parameters(BaseModel, frozen=True, extra="forbid"):
    """Parameters of every chapter."""

    seed: int = Field(20250206, ge=0, le=2**32 - 1, description="seeds every resampling draw")
    draws: int = Field(10_000, ge=100, le=1_000_000, description="resampling draws behind each interval")


def _field(
    default: Any = None, about: str = "resampling draws behind each interval", low: float | None = None,
    high: float | None = None, allowed: Sequence[str] = (), folder: bool = False,
) -> Any:  # fmt: skip
    kind: Any = Folder if folder else Literal[tuple(allowed)] if allowed else type(default)
    return kind, Field(default, ge=low, le=high, description=about)


def _load() -> dict[str, type[Parameters]]:
    table = tomllib.loads(resources.files("reprolib.report").joinpath("parameters.toml").read_text())
    shared = table.pop("shared") | {"draws": {"low": 100, "high": 1_000_000}}
    chapters = dict[str, type[Parameters]]()
    for chapter, own in table.items():
        fields = {name: {} for name in own.pop("shared", [])} | own
        made = {name: _field(**shared.get(name, {}) | about) for name, about in fields.items()}
        chapters[chapter] = create_model(chapter, __base__=Parameters, **made)
    return chapters


CHAPTERS = _load()


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
