"""What a chapter puts on its page besides figures and claims; markup stands in `templates/`, where text is escaped."""

import html
import platform
import re
from collections import namedtuple
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import display
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel

from reprolib.project import root
from reprolib.report.claims import MARKS

_GLUE = "application/papermill.record/"
_PACKAGES = ("reprolib", "numpy", "scipy", "pandas", "scikit-learn", "seaborn", "papermill", "jupyter-book")
# A named quantity: `name` is its variable in the formula; `start` is the default, in steps from low to high.
Slider = namedtuple("Slider", "name label start low high step", defaults=(0.0, 100.0, 0.1))


def render(template: str, **values: Any) -> str:
    """A template of this package or of `book/_templates`, filled in."""
    loader = FileSystemLoader([Path(__file__).with_name("templates"), root() / "book" / "_templates"])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.globals["marks"] = MARKS
    return environment.get_template(template).render(values)


def show_html(markup: str, *, plain: str, extra: Mapping[str, Any] | None = None) -> None:
    """Display markup on the page, `plain` where only text is shown, and machine-readable `extra` by MIME type."""
    display({"text/html": markup, "text/plain": plain, **(extra or {})}, raw=True)


def say(**texts: str) -> None:
    """Make numbers, formatted to text, available to this page's prose: ``{glue:text}`name```."""
    for name, text in texts.items():
        # The bundle of `myst_nb.glue`, whose import alone would cost every chapter two seconds.
        about = {"scrapbook": {"name": name, "mime_prefix": _GLUE}}
        display({_GLUE + "text/plain": repr(text)}, metadata=about, raw=True)


def note(text: str) -> None:
    """Display a remark of one sentence."""
    show_html(f"<p><em>{html.escape(text)}</em></p>", plain=text)


def frame_html(data: pd.DataFrame, *, decimals: int = 1) -> str:
    """A frame as an HTML table in a box that scrolls on narrow screens; text is escaped."""
    numbers = f"{{:.{decimals}f}}".format
    text = data.rename_axis(columns=None).to_html(index=False, border=0, float_format=numbers, na_rep="undefined")
    text = re.sub(r' style="text-align: right;"| class="dataframe"', "", text).replace("<th>", '<th scope="col">')
    return f'<div class="scroll" tabindex="0" role="group" aria-label="Table">{text}</div>'


def show_table(data: pd.DataFrame, *, decimals: int = 1) -> None:
    """Display a frame as a table that scrolls on narrow screens."""
    show_html(frame_html(data, decimals=decimals), plain=data.round(decimals).to_string(index=False))


def show_provenance(chapter: str, parameters: BaseModel, *, data: Mapping[str, str] | None = None) -> None:
    """Display the page's footer: how to run it again, its parameters, the versions, the digests of released data."""
    given = parameters.model_dump(mode="json", exclude_none=True)
    command = f"papermill notebooks/{chapter}.ipynb out.ipynb" + "".join(f" -p {k} {v}" for k, v in given.items())
    versions = ", ".join([*(f"{p} {version(p)}" for p in _PACKAGES), f"Python {platform.python_version()}"])
    show_html(render("provenance.html.j2", command=command, versions=versions, data=data or {}), plain=command)


def show_sliders(
    name: str, *, sliders: Sequence[Slider], formula: str, result: str, start: float, examples: pd.DataFrame,
    decimals: int = 1,
) -> None:  # fmt: skip
    """Display range sliders and the live value of a formula, in plain HTML and JavaScript: no kernel or server.

    `formula` is a JavaScript expression over the sliders' names (NaN shows as "undefined"), `result` labels its value,
    `start` is that at the start; `examples` is a table for readers without scripts.
    """
    values = {"name": name, "sliders": sliders, "formula": formula, "result": result, "decimals": decimals}
    shown, table = f"{start:.{decimals}f}", frame_html(examples)
    show_html(render("sliders.html.j2", shown=shown, table=table, **values), plain=f"{result}: {shown} at the start")
