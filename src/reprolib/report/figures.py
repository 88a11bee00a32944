"""Figures that a reader can see in light and dark (inline SVG), hear as alt text, and check as a table."""

import base64
import io
import re
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reprolib.report.page import frame_html, render, show_html

MIME = "application/vnd.reprolib.alt+json"
# At least 3:1 against a white and a near-black page, and told apart by common kinds of colour blindness.
PALETTE = ("#2878b5", "#c8651b", "#178a67", "#b0569b", "#7a7f87")
INK, _GRID = "#123456", "#abcdef"  # stand-ins that `show` turns into the page's own colours
_STYLE = {
    "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 10, "axes.titlesize": 10.5,
    "legend.frameon": False, "axes.axisbelow": True, "grid.color": _GRID,
    **dict.fromkeys(["figure.facecolor", "axes.facecolor", "savefig.facecolor"], "none"),
    **dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], INK),
}  # fmt: skip


def style() -> None:
    """Set the seaborn theme of this book; call once, before the first figure."""
    sns.set_theme(style="whitegrid", palette=list(PALETTE), rc=_STYLE)


def show(fig: Figure, *, name: str, alt: str, caption: str, data: pd.DataFrame) -> None:
    """Display a figure with its alt text, its caption and its data as a folded table with a CSV link; closes `fig`.

    `name` is unique on the page; `alt` says what the figure shows, built from the values; `caption` is one or two
    sentences with the tier of the evidence; `data` holds the plotted numbers.
    """
    # SVG, the same bytes every time, in the page's font and colours, with ids that are unique on a page.
    buffer = io.StringIO()
    with plt.rc_context({"svg.hashsalt": name}):
        fig.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(fig)
    svg = buffer.getvalue().partition("<svg")[2].replace(INK, "currentColor")
    used = set(re.findall(r"(?:url\(#|href=\"#)([\w-]+)", svg))
    svg = re.sub(r' id="([\w-]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    changes = {
        "(?s)<metadata>.*?</metadata>": "", _GRID: "var(--figure-grid, #b8bec6)", "xlink:href": "href",
        r"'DejaVu Sans'(, [^;\"]*)?": "inherit", ' xmlns:xlink="[^"]*"': "", r'url\(#|href="#': rf"\g<0>{name}-",
    }  # fmt: skip
    for pattern, new in changes.items():
        svg = re.sub(pattern, new, svg)
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])  # type: ignore[index]
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    drawing = f'style="width: {width / 62:.2f}in"{svg}'  # a little larger than 72 points an inch
    csv = base64.b64encode(data.to_csv(index=False, float_format="%.6g").encode()).decode()
    values = {"name": name, "alt": alt, "caption": caption, "drawing": drawing, "csv": csv}
    page = render("figure.html.j2", table=frame_html(data), **values)
    show_html(page, plain=alt, extra={MIME: {"alt": alt}})


def forest(
    data: pd.DataFrame, *, label: str, by: str | None = None, marker: str | None = None, marker_label: str = "paper",
    xlabel: str, null: float = 0.0,
) -> Figure:  # fmt: skip
    """A forest plot: a row per label, a point (column value) with its interval (low, high, if given), a line at `null`.

    Points with the same `label` share a row; `by` gives them a colour and a shape each. `marker` is a column with a
    second number a point, drawn as an open diamond.
    """
    groups = list(dict.fromkeys(data[by])) if by else [None]
    rows = {row: k for k, row in enumerate(dict.fromkeys(data[label]))}
    _, ax = plt.subplots(figsize=(4.6, 0.7 + (0.42 + 0.13 * len(groups)) * len(rows)))
    ax.axvline(null, color=INK, linewidth=1)
    for row, k in rows.items():
        ax.text(0, k + 0.02, row, transform=ax.get_yaxis_transform(), va="center", fontsize=9)
    for k, group in enumerate(groups):
        part = data[data[by] == group] if by else data
        y = part[label].map(rows) + (k + 1) / (len(groups) + 1)
        ends = [part.value - part.low, part.high - part.value] if "low" in part else []
        errors = [end.clip(lower=0) for end in ends] or None
        ax.errorbar(part.value, y, xerr=errors, fmt="os^vD"[k], color=PALETTE[k], capsize=3, markersize=5, label=group)
        if marker:
            named = marker_label if k == 0 else None
            ax.plot(part[marker], y, "D", mfc="none", mec=INK, markersize=9, linestyle="none", label=named)
    return finish(ax, left=True, yticks=[], xlabel=xlabel, ylim=(len(rows), -0.3))


def stacked(data: pd.DataFrame, *, label: str, xlabel: str) -> Figure:
    """Stacked bars, a row per `label`, named above it to fit a phone; every other column is a part, in percent."""
    rows = data.set_index(label)[::-1]
    size = (4.6, 0.9 + 0.42 * len(data))
    bars = rows.plot.barh(stacked=True, color=PALETTE, edgecolor=INK, linewidth=0.4, width=0.45, figsize=size)
    for k, row in enumerate(rows.index):
        bars.text(0, k + 0.24, row, va="bottom", fontsize=9)
    bars.grid(visible=False, axis="y")
    return finish(bars, xlabel=xlabel, ylabel="", yticks=[], ylim=(-0.5, len(data)))


def finish(ax: Axes, *, left: bool = False, **labels: Any) -> Figure:
    """Labels, frame and legend as everywhere in this book; the figure of `ax`."""
    ax.set(**labels)
    sns.despine(ax=ax, left=left)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, handletextpad=0.2, columnspacing=1)
    return plt.gcf()
