"""What a chapter puts on its page besides figures and claims: sentences' numbers, tables, sliders, provenance."""

from __future__ import annotations

import html
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import pandas as pd
from pydantic import BaseModel

_GLUE = "application/papermill.record/"
_PACKAGES = ("reprolib", "numpy", "scipy", "pandas", "scikit-learn", "seaborn", "papermill", "jupyter-book")


def say(**texts: str) -> None:
    """Make numbers, formatted to text by the code beside them, available to this page's prose: ``{glue:text}`name```.

    Raises TypeError for anything but text.
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
    options = " ".join(f"-p {k} {v}" for k, v in given.items())
    versions = [*(f"{name} {version(name)}" for name in _PACKAGES), f"Python {platform.python_version()}"]
    rows = {
        "Run again": f"<code>papermill notebooks/{chapter}.ipynb out.ipynb {html.escape(options)}</code>",
        "Versions": ", ".join(versions),
        **{f"SHA-256 of {name}": f"<code>{digest}</code>" for name, digest in (data or {}).items()},
    }
    body = "".join(f"<dt>{html.escape(k)}</dt><dd>{v}</dd>" for k, v in rows.items())
    plain = "\n".join(f"{k}: {re.sub('<[^>]+>', '', v)}" for k, v in rows.items())
    show_html(f'<dl class="provenance">{body}</dl>', plain=plain)


class Slider(NamedTuple):
    """A named quantity: `name` is its variable in the formula; `start` is the default, in `step`s from low to high."""

    name: str
    label: str
    start: float
    low: float = 0.0
    high: float = 100.0
    step: float = 0.1


_SLIDER = """<div><label for="{box}-{name}">{label}</label><input type="range" id="{box}-{name}" min="{low:g}" \
max="{high:g}" step="{step:g}" value="{start:g}"><output for="{box}-{name}">{start:.1f}</output></div>"""
_SLIDERS = """<div class="whatif" id="{name}" role="group" aria-label="{result}: what if">{rows}<p class="answer">\
{result}: <output class="result" aria-live="polite">{start}</output></p></div><noscript>{table}</noscript>
<script>(() => {{
  const box = document.getElementById("{name}"), inputs = [...box.querySelectorAll("input")];
  const formula = ({arguments}) => {formula};
  inputs.forEach((input) => input.addEventListener("input", () => {{
    const value = formula(...inputs.map((i) => Number(i.value)));
    input.nextElementSibling.textContent = Number(input.value).toFixed(1);
    box.querySelector(".result").textContent = Number.isFinite(value) ? value.toFixed({decimals}) : "undefined";
  }}));
}})();</script>"""


def show_sliders(
    name: str, *, sliders: Sequence[Slider], formula: str, result: str, start: float, examples: pd.DataFrame,
    decimals: int = 1,
) -> None:  # fmt: skip
    """Display range sliders and the live value of a formula, in plain HTML and JavaScript: no kernel or server.

    `formula` is a JavaScript expression over the sliders' names (NaN shows as "undefined"); `result` labels its value.
    `start` is the value at the start, computed in Python; `examples` is a table for readers without scripts.
    """
    rows = "".join(_SLIDER.format(box=name, **s._replace(label=html.escape(s.label))._asdict()) for s in sliders)
    shown, names = f"{start:.{decimals}f}", ", ".join(s.name for s in sliders)
    page = _SLIDERS.format(name=name, result=html.escape(result), rows=rows, start=shown, table=frame_html(examples),
                           arguments=names, formula=formula, decimals=decimals)  # fmt: skip
    show_html(page, plain=f"{result}: {shown} at the start values")
