"""The lint of prose: no result is typed by hand."""

import re


def lint_prose(text: str) -> list[str]:
    """Numbers in prose that look typed by hand: decimals, percentages and points that are not bound to a value.

    Left alone: code, math, roles and links, names of models and benchmarks, numbers of tables, sections and licences,
    and the confidence level 95 %.
    """
    for pattern in _NOT_RESULTS:
        text = pattern.sub(" ", text)
    return re.findall(r"(?<![\w.])[-−]?\d+\.\d+(?![\w.]*\w)|(?<![\w.])\d+(?= ?(?:%|percent\b|points?\b))", text)


_NOT_RESULTS = [
    re.compile(pattern, re.DOTALL | re.MULTILINE)
    for pattern in (
        r"```.*?```|~~~.*?~~~",
        r"\$\$.*?\$\$|\$[^$\n]+\$",
        r"\{[\w:-]+\}`[^`]*`|`[^`]*`",
        r"\]\([^)]*\)|<[^>]+>|https?://\S+",
        r"arXiv[: ]\d+\.\d+",
        r"\b[A-Za-z]\w*-[\w.]+",
        r"\b(?:AlpacaEval|CC BY|Python|Table|Figure|Fig\.|section|Section|chapter|version|MathJax) \d[\d.]*",
        r"\b95 ?%",
    )
]
