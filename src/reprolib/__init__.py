"""Reproduce what papers claim about the bias of LLM judges, with intervals and machine verdicts.

Importing this package loads the standard library only; each name below loads its module on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "Estimate": "reprolib.metrics.resampling",
    "bootstrap": "reprolib.metrics.resampling",
    "pls": "reprolib.metrics.leakage",
    "win_rate": "reprolib.metrics.leakage",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'reprolib' has no attribute {name!r}; it has {', '.join(_WHERE)}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
