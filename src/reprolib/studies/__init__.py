"""One module a paper: from evidence, or from a judge, to tidy tables that the chapters show."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from reprolib.errors import ParameterError

RECORDED = ("evidence_check", "overlap", "score_range")  # modules with a function `record`


def recorder(study: str) -> Callable[..., Any]:
    """``record(judge, *, command, **options)`` of a study that writes records; ParameterError for others."""
    if study not in RECORDED:
        raise ParameterError(f"no study {study!r} makes records", hint=f"allowed: {', '.join(RECORDED)}")
    return importlib.import_module(f"reprolib.studies.{study}").record
