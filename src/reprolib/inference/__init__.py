"""A judge, from prompt to log-probabilities. Torch is imported when a model is first needed."""

from reprolib.errors import ReprolibError


class JudgeError(ReprolibError):
    """A judge that cannot be loaded, a prompt or label that it refuses, or a run that had to stop."""


from reprolib.inference.judge import Judge, load_judge  # noqa: E402  (they raise the error above)
from reprolib.inference.store import Store  # noqa: E402

__all__ = ["Judge", "JudgeError", "Store", "load_judge"]
