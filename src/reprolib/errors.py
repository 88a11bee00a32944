"""Every error a user can cause: one base class, so one `except` and one line on the terminal."""

import difflib
import textwrap
from collections.abc import Mapping
from typing import Any


class ReprolibError(Exception):
    """What went wrong, and in `hint` what is allowed or what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)


class EvidenceError(ReprolibError):
    """A file of evidence, claims included, is missing, altered or malformed."""


class ParameterError(ReprolibError):
    """A name that does not exist, or a value that is not allowed."""


class ChapterError(ReprolibError):
    """A notebook that failed, or that a gate refused."""


def pick(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """The entry `name` of `known`; if there is none, ParameterError with the close names, else the allowed ones."""
    if name in known:
        return known[name]
    close = " or ".join(map(repr, difflib.get_close_matches(name, known, n=3)))
    hint = f"did you mean {close}?" if close else f"allowed: {textwrap.shorten(', '.join(known), 400)}"
    raise ParameterError(f"no {kind} {name!r}", hint=hint)
