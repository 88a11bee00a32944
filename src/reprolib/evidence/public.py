"""Results computed from judgments that others released, whose data is never committed.

`@public_study` turns a function of the data's paths into one without arguments: with the data at hand it computes and
compares with the committed `evidence/public/<study>.json`; without it returns the committed result and says so.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from reprolib.errors import EvidenceError
from reprolib.evidence import download
from reprolib.project import evidence_dir, write_text

Compute = Callable[[dict[str, Path]], dict[str, Any]]
# Library versions and processors move a fitted classifier by single texts; anything larger is a disagreement.
_TOLERANCE = 5e-3  # relative and absolute
_registered: dict[str, tuple[Compute, list[str]]] = {}


@dataclass(frozen=True)
class PublicResult:
    """What was computed, the SHA-256 of the data behind it, and whether that happened just now."""

    values: dict[str, Any]
    digests: dict[str, str]
    recomputed: bool

    @property
    def origin(self) -> str:
        """One sentence for the page: where these numbers come from."""
        if self.recomputed:
            return "Recomputed from the released data for this page; equal to the committed result."
        return "Committed result; the released data was not at hand for this page (reprolib fetch brings it)."


def public_study(study: str, *, sources: list[str]) -> Callable[[Compute], Callable[[], PublicResult]]:
    """Register a computation over the pinned files `sources` (names of `evidence/public/sources.toml`)."""

    def decorate(compute: Compute) -> Callable[[], PublicResult]:
        @wraps(compute)
        def result() -> PublicResult:
            committed, at_hand = _committed(study), download.at_hand(sources)
            values = _agreeing(study) if at_hand else committed["values"]
            return PublicResult(values, committed["data"], recomputed=at_hand)

        _registered[study] = compute, sources
        return result

    return decorate


def recompute(study: str, *, write: bool = False) -> str:
    """One line on a study computed from its data (fetched if need be): equal to the committed result, or written.

    Raises EvidenceError if they differ and `write` is false.
    """
    if study not in studies():
        raise EvidenceError(f"no public study {study!r}", hint=f"allowed: {', '.join(studies())}")
    if not write:
        _agreeing(study)
        return f"{study}: recomputed, equal to the committed result"
    document = {"study": study, "data": _pinned(study), "values": _computed(study)}
    write_text(_path(study), json.dumps(document, indent=1, sort_keys=True) + "\n")
    return f"{study}: wrote {study}.json"


def studies() -> list[str]:
    """Names of all public studies."""
    from reprolib import studies as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return sorted(_registered)


def _path(study: str) -> Path:
    return evidence_dir() / "public" / f"{study}.json"


def _pinned(study: str) -> dict[str, str]:
    return {name: download.source(name).sha256 for name in _registered[study][1]}


def _computed(study: str) -> dict[str, Any]:
    compute, sources = _registered[study]
    return json.loads(json.dumps(compute(download.fetch(sources))))


def _committed(study: str) -> dict[str, Any]:
    document = json.loads(_path(study).read_text()) if _path(study).is_file() else {}
    if document.get("data") != _pinned(study):
        message = f"{study}.json is missing, or was computed from other data than sources.toml pins"
        raise EvidenceError(message, hint=f"run: reprolib recompute {study} --write")
    return document


def _agreeing(study: str) -> dict[str, Any]:
    """The values computed from the data; EvidenceError if the committed ones differ."""
    fresh = _computed(study)
    if difference := _difference(_committed(study)["values"], fresh):
        hint = f"inspect it; if the change is meant: reprolib recompute {study} --write"
        raise EvidenceError(f"{study}: recomputed and committed results differ at {difference}", hint=hint)
    return fresh


def _difference(old: Any, new: Any, where: str = "") -> str:
    """Where two results first disagree, or an empty string."""
    if isinstance(old, list) and isinstance(new, list):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        names = {k: f"{where}[{k}]" if isinstance(k, int) else f"{where}.{k}".lstrip(".") for k in old}
        return next((found for k, name in names.items() if (found := _difference(old[k], new[k], name))), "")
    numbers = isinstance(old, float) and isinstance(new, float)
    if repr(old) == repr(new) or (numbers and math.isclose(old, new, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)):
        return ""
    return f"{where}: {old!r} and {new!r}"
