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
from reprolib.project import evidence_dir

Compute = Callable[[dict[str, Path]], dict[str, Any]]
# Library versions and processors move a fitted classifier by single texts; anything larger is a disagreement.
_RELATIVE, _ABSOLUTE = 5e-3, 5e-3


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


_registered: dict[str, Callable[[], dict[str, Any]]] = {}


def public_study(study: str, *, sources: list[str]) -> Callable[[Compute], Callable[[], PublicResult]]:
    """Register a computation over the pinned files `sources` (names of `evidence/public/sources.toml`)."""

    def decorate(compute: Compute) -> Callable[[], PublicResult]:
        def document() -> dict[str, Any]:
            values = compute(download.fetch(sources))
            return {"study": study, "data": _digests(sources), "values": json.loads(json.dumps(values))}

        @wraps(compute)
        def result() -> PublicResult:
            committed = _committed(study, sources)
            if not download.at_hand(sources):
                return PublicResult(committed["values"], committed["data"], recomputed=False)
            fresh = document()
            if difference := _difference(committed["values"], fresh["values"]):
                hint = f"inspect it; if the change is meant: reprolib recompute {study} --write"
                raise EvidenceError(f"{study}: recomputed and committed results differ at {difference}", hint=hint)
            return PublicResult(fresh["values"], fresh["data"], recomputed=True)

        _registered[study] = document
        return result

    return decorate


def recompute(study: str, *, write: bool = False) -> str:
    """One line on a study computed from its data (fetched if need be): equal to the committed result, or written.

    Raises EvidenceError if they differ and `write` is false.
    """
    if study not in studies():
        raise EvidenceError(f"no public study {study!r}", hint=f"allowed: {', '.join(studies())}")
    fresh, path = _registered[study](), _path(study)
    if write:
        path.write_text(json.dumps(fresh, indent=1, sort_keys=True) + "\n")
        return f"{study}: wrote {path.name}"
    if difference := _difference(json.loads(path.read_text())["values"], fresh["values"]):
        message = f"{study}: recomputed and committed results differ at {difference}"
        raise EvidenceError(message, hint="--write keeps it")
    return f"{study}: recomputed, equal to the committed result"


def studies() -> list[str]:
    """Names of all public studies."""
    from reprolib import studies as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return sorted(_registered)


def _committed(study: str, sources: list[str]) -> dict[str, Any]:
    path = _path(study)
    if not path.is_file():
        raise EvidenceError(f"no committed result {path.name}", hint=f"run: reprolib recompute {study} --write")
    document: dict[str, Any] = json.loads(path.read_text())
    if document["data"] != _digests(sources):
        hint = f"run: reprolib recompute {study} --write"
        raise EvidenceError(f"{path.name} was computed from other data than sources.toml pins", hint=hint)
    return document


def _path(study: str) -> Path:
    return evidence_dir() / "public" / f"{study}.json"


def _digests(sources: list[str]) -> dict[str, str]:
    return {name: download.source(name).sha256 for name in sources}


def _difference(old: Any, new: Any, where: str = "") -> str:
    """Where two results first disagree, or an empty string."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return next((found for k in old if (found := _difference(old[k], new[k], f"{where}.{k}".lstrip(".")))), "")
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return next((found for i, (a, b) in pairs if (found := _difference(a, b, f"{where}[{i}]"))), "")
    if isinstance(old, float) and isinstance(new, float):
        same = math.isclose(old, new, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
        return "" if same or (math.isnan(old) and math.isnan(new)) else f"{where}: {old} and {new}"
    return "" if old == new else f"{where}: {old!r} and {new!r}"
