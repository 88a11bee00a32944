"""A judge, from prompt to log-probabilities.

Planning, tokens and the store need no torch: it is imported when a model is first needed.
"""

from __future__ import annotations

import importlib
from typing import Any

from reprolib.errors import ReprolibError

__all__ = ["Judge", "JudgeError", "Store", "load_judge"]


class JudgeError(ReprolibError):
    """A judge that cannot be loaded, a prompt or label that it refuses, or a run that had to stop."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'reprolib.inference' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"reprolib.inference.{'store' if name == 'Store' else 'judge'}"), name)
