"""What a chapter puts on its page besides figures and claims: sentences' numbers, tables, where it all came from."""

from __future__ import annotations

import html
import platform
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import pandas as pd
from pydantic import BaseModel

_GLUE = "application/papermill.record/"
_PACKAGES = ("reprolib", "numpy", "scipy", "pandas", "scikit-learn", "seaborn", "papermill", "jupyter-book")


def say(**texts: str) -> None:
    """Make formatted numbers available to the prose of this page as ``{glue:text}`name```.

    Only text is accepted: the code beside the value decides how it is rounded.
    """
    from IPython.display import display

    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} is {type(text).__name__}; format it to text first, such as f'{{x:.1f}}'")
        # The bundle of `myst_nb.glue`, whose import alone would cost every chapter two seconds.
        bundle = {_GLUE + "text/plain": repr(text)}
        display(bundle, metadata={"scrapbook": {"name": name, "mime_prefix": _GLUE}}, raw=True)


def show_html(markup: str, *, plain: str, extra: Mapping[str, Any] | None = None) -> None:
    """Display markup on the page, `plain` where only text is shown, and machine-readable `extra` by MIME type."""
    from IPython.display import display

    display({"text/html": markup, "text/plain": plain, **(extra or {})}, raw=True)


def note(text: str) -> None:
    """Display a remark of one sentence."""
    show_html(f"<p><em>{html.escape(text)}</em></p>", plain=text)


def frame_html(data: pd.DataFrame, *, decimals: int = 1) -> str:
    """A frame as an HTML table in a box that scrolls on narrow screens; text is escaped."""
    text = data.rename_axis(columns=None).to_html(
        index=False, border=0, float_format=f"{{:.{decimals}f}}".format, na_rep="undefined"
    )
    text = re.sub(r' style="text-align: right;"| class="dataframe"', "", text).replace("<th>", '<th scope="col">')
    return f'<div class="scroll" tabindex="0" role="group" aria-label="Table">{text}</div>'


def show_table(data: pd.DataFrame, *, decimals: int = 1) -> None:
    """Display a frame as a table that scrolls on narrow screens."""
    show_html(frame_html(data, decimals=decimals), plain=data.round(decimals).to_string(index=False))


def show_provenance(chapter: str, parameters: BaseModel, *, data: Mapping[str, str] | None = None) -> None:
    """Display the page's footer: how to run it again, its parameters, the versions, the digests of released data."""
    given = {k: v for k, v in parameters.model_dump(mode="json").items() if v is not None}
    options = " ".join(f"-p {k} {v}" for k, v in given.items())
    rows = {
        "Run again": f"<code>papermill notebooks/{chapter}.ipynb out.ipynb {html.escape(options)}</code>",
        "Versions": ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
        + f", Python {platform.python_version()}",
        **{f"SHA-256 of {name}": f"<code>{digest}</code>" for name, digest in (data or {}).items()},
    }
    body = "".join(f"<dt>{html.escape(k)}</dt><dd>{v}</dd>" for k, v in rows.items())
    plain = "\n".join(f"{k}: {re.sub('<[^>]+>', '', v)}" for k, v in rows.items())
    show_html(f'<dl class="provenance">{body}</dl>', plain=plain)
