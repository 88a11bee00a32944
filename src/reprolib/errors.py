"""Every error a user can cause: one base class, so one `except` and one line on the terminal."""


class ReprolibError(Exception):
    """What went wrong, and in `hint` what is allowed or what to do next.

    >>> str(ReprolibError("no chapter 'leakage_mian'", hint="did you mean 'leakage_main'?"))
    "no chapter 'leakage_mian'; did you mean 'leakage_main'?"
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class EvidenceError(ReprolibError):
    """A data file is missing, altered or malformed."""


class ParameterError(ReprolibError):
    """A parameter or a chapter name that does not exist, or a value that is not allowed."""


class ClaimError(ReprolibError):
    """A claim registered twice or wrongly, or a result that fits no registered claim."""


class ChapterError(ReprolibError):
    """A notebook that failed, or that a gate refused."""
