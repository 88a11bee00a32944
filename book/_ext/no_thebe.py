"""Drop thebe from every page: jupyter-book loads its starter even when it is off, twice, and so with a script error."""

from __future__ import annotations

from typing import Any


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx, after the extensions that add the scripts."""
    app.connect("html-page-context", _drop, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _drop(_app: Any, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    for kind in ("script_files", "css_files"):
        context[kind] = [f for f in context.get(kind, []) if "thebe" not in _described(f).lower()]


def _described(file: Any) -> str:
    return f"{file} {getattr(file, 'attributes', '')}"
