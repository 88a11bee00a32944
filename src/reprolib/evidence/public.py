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
_RELATIVE, _ABSOLUTE = 5e-3, 5e-3
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
            committed, pinned = _committed(study), _digests(sources)
            if committed["data"] != pinned:
                hint = f"run: reprolib recompute {study} --write"
                raise EvidenceError(f"{study}.json was computed from other data than sources.toml pins", hint=hint)
            at_hand = download.at_hand(sources)
            values = _agreeing(study)["values"] if at_hand else committed["values"]
            return PublicResult(values, pinned, recomputed=at_hand)

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
    write_text(_path(study), json.dumps(_computed(study), indent=1, sort_keys=True) + "\n")
    return f"{study}: wrote {study}.json"


def studies() -> list[str]:
    """Names of all public studies."""
    from reprolib import studies as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return sorted(_registered)


def _computed(study: str) -> dict[str, Any]:
    compute, sources = _registered[study]
    values = json.loads(json.dumps(compute(download.fetch(sources))))
    return {"study": study, "data": _digests(sources), "values": values}


def _committed(study: str) -> dict[str, Any]:
    if not _path(study).is_file():
        raise EvidenceError(f"no committed result {study}.json", hint=f"run: reprolib recompute {study} --write")
    return json.loads(_path(study).read_text())


def _agreeing(study: str) -> dict[str, Any]:
    fresh = _computed(study)
    if difference := _difference(_committed(study)["values"], fresh["values"]):
        hint = f"inspect it; if the change is meant: reprolib recompute {study} --write"
        raise EvidenceError(f"{study}: recomputed and committed results differ at {difference}", hint=hint)
    return fresh


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
