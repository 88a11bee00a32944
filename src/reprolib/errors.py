"""Every error a user can cause: one base class, so one `except` and one line on the terminal."""

import difflib
from collections.abc import Iterable


class ReprolibError(Exception):
    """What went wrong, and in `hint` what is allowed or what to do next.

    >>> str(ReprolibError("no chapter 'leakage_mian'", hint="did you mean 'leakage_main'?"))
    "no chapter 'leakage_mian'; did you mean 'leakage_main'?"
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)


class EvidenceError(ReprolibError):
    """A data file is missing, altered or malformed."""


class ParameterError(ReprolibError):
    """A parameter or a chapter name that does not exist, or a value that is not allowed."""


class ClaimError(ReprolibError):
    """A claim registered twice or wrongly, or a result that fits no registered claim."""


class ChapterError(ReprolibError):
    """A notebook that failed, or that a gate refused."""


def suggest(given: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """A hint for a name that does not exist: the close ones, or `otherwise`, by default all that are allowed.

    >>> suggest("sed", ["seed", "draws"]), suggest("x", ["seed", "draws"])
    ("did you mean 'seed'?", 'allowed: seed, draws')
    """
    names = list(known)
    close = " or ".join(map(repr, difflib.get_close_matches(given, names, n=3)))
    return f"did you mean {close}?" if close else otherwise or f"allowed: {', '.join(names)}"
