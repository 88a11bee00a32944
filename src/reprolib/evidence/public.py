"""Results computed from judgments that others released: committed as `evidence/public/<study>.json`, the data never.

A recipe says how (`public_study`), `result` is what a chapter shows.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from reprolib.errors import EvidenceError, pick
from reprolib.evidence import download, recipe, recipes
from reprolib.project import evidence_dir, write_text

_TOLERANCE = 5e-3  # library versions and processors move a fitted classifier by single texts


class PublicResult(NamedTuple):
    """What was computed, the SHA-256 of the data behind it, and whether that happened just now."""

    values: dict[str, Any]
    digests: dict[str, str]
    recomputed: bool
    on_page: bool = True

    @property
    def origin(self) -> str:
        """One sentence for the page: where these numbers come from."""
        if self.recomputed:
            return "Recomputed from the released data for this page; equal to the committed result."
        if not self.on_page:
            return "Committed result, too slow to make again on a page; reprolib recompute compares it with the data."
        return "Committed result; the released data was not at hand for this page (reprolib fetch brings it)."


Compute = Callable[[dict[str, Path]], dict[str, Any]]
_registered: dict[str, tuple[Compute, list[str], bool]] = {}  # with its sources, and whether a page computes it


def public_study(study: str, *, sources: list[str], on_page: bool = True) -> Callable[[Compute], Compute]:
    """Register a recipe's computation over the pinned files `sources` (names of `evidence/public/sources.toml`).

    It returns what JSON can hold. What takes too long for a page (`on_page` False) is computed by `reprolib recompute`.
    """

    def register(compute: Compute) -> Compute:
        _registered[study] = compute, sources, on_page
        return compute

    return register


def studies() -> list[str]:
    """The names of all public studies."""
    for name in recipes():
        recipe(name)
    return [*_registered]


def result(study: str, *, fetch: bool = False, write: bool = False) -> PublicResult:
    """The result of a public study: with the data at hand computed, and compared with the committed one; else that.

    `fetch` brings the data, `write` replaces the committed result. EvidenceError: they differ, or the data is not the
    pinned one; ParameterError: no such study.
    """
    studies()  # registers them
    compute, sources, on_page = pick("public study", study, _registered)
    path, known = evidence_dir() / "public" / f"{study}.json", download.sources()
    digests = {name: known[name].sha256 for name in sources}
    document = json.loads(path.read_text()) if path.is_file() else {}
    if document.get("data") != digests and not write:
        message = f"{path.name} is missing, or was computed from other data than sources.toml pins"
        raise EvidenceError(message, hint=f"run: reprolib recompute {study} --write")
    if not (fetch or (on_page and download.at_hand(sources))):
        return PublicResult(document["values"], digests, False, on_page)
    values = json.loads(json.dumps(compute(download.fetch(sources))))
    if write:
        document = {"study": study, "data": digests, "values": values}
        text = json.dumps(document, indent=1, sort_keys=True) + "\n"
        write_text(path, re.sub(r"\[[-\d.,\s]+\]", lambda numbers: "".join(numbers[0].split()), text))
    elif difference := _difference(document["values"], values):
        hint = f"inspect it; if the change is meant: reprolib recompute {study} --write"
        raise EvidenceError(f"{study}: recomputed and committed results differ at {difference}", hint=hint)
    return PublicResult(values, digests, True, on_page)


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
