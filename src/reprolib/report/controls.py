"""Range sliders in plain HTML with a formula in JavaScript: no kernel or server; without scripts, a table instead."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from reprolib.report.page import frame_html, show_html


@dataclass(frozen=True)
class Slider:
    """A named quantity: `name` is its variable in the formula; `start` is the default, in `step`s from low to high."""

    name: str
    label: str
    start: float
    low: float = 0.0
    high: float = 100.0
    step: float = 0.1


def show_sliders(
    name: str, *, sliders: Sequence[Slider], formula: str, result: str, start: float, examples: pd.DataFrame,
    decimals: int = 1,
) -> None:  # fmt: skip
    """Display sliders and the live value of a formula.

    `formula` is a JavaScript expression over the sliders' names (NaN shows as "undefined"); `result` labels its value.
    `start` is the value at the start, computed in Python; `examples` is a table for readers without scripts.
    """
    rows = "".join(_row(name, s) for s in sliders)
    arguments = ", ".join(s.name for s in sliders)
    script = f"""(() => {{
  const box = document.getElementById("{name}"), out = box.querySelector("output.result");
  const formula = ({arguments}) => {formula};
  const inputs = [...box.querySelectorAll("input")];
  inputs.forEach((input) => input.addEventListener("input", () => {{
    const values = inputs.map((i) => Number(i.value));
    inputs.forEach((i) => {{ i.nextElementSibling.textContent = Number(i.value).toFixed(1); }});
    const value = formula(...values);
    out.textContent = Number.isFinite(value) ? value.toFixed({decimals}) : "undefined";
  }}));
}})();"""
    page = (
        f'<div class="whatif" id="{name}" role="group" aria-label="{html.escape(result)}: what if">{rows}'
        f'<p class="answer">{html.escape(result)}: <output class="result" aria-live="polite">'
        f"{start:.{decimals}f}</output></p></div>"
        f"<noscript>{frame_html(examples)}</noscript><script>{script}</script>"
    )
    show_html(page, plain=f"{result}: {start:.{decimals}f} at the start values")


def _row(name: str, slider: Slider) -> str:
    field = f"{name}-{slider.name}"
    return (
        f'<div><label for="{field}">{html.escape(slider.label)}</label><input type="range" id="{field}" '
        f'min="{slider.low:g}" max="{slider.high:g}" step="{slider.step:g}" value="{slider.start:g}">'
        f'<output for="{field}">{slider.start:.1f}</output></div>'
    )
