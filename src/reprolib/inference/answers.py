"""What a served model's reply says about the labels: a value, a bound, or a named failure; never a number by luck."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

ANSWER_TOKENS = 16  # of a reply that names a label: enough to see whether a "1" is the start of an essay
_UNKNOWN = -9000.0  # OpenAI writes -9999 for a log-probability that it does not tell
_WRAPPERS = " \t\r\n*_`\"'[](){}“”‘’"
_LEAD = re.compile(r"((the|my|final)\s+)*(answer|choice|label|rating|score|verdict)\b\s*(is\b|:|=)?", re.IGNORECASE)


def read_reply(top: Sequence[Any], text: str, finish: str, labels: Sequence[str]) -> dict[str, Any]:
    """The row of `label_logprobs`: from the first token's alternatives or, where no label is among them, the text.

    `top` holds for each its text, log-probability, and bytes if the server gives them. A label that no single token
    spells is censored: `logp_` is NaN and `bound_` its upper bound, the log-probability of the least likely token shown
    or, for a label of several tokens, of the likeliest token shown that begins it.

    >>> row = read_reply([("1", -0.1, None), ("The", -3.0, None)], "1", "stop", ["1", "2"])
    >>> row["logp_1"], row["bound_2"], row["answer"]
    (-0.1, -3.0, '1')
    """
    shown = [(bytes(b) if b else t.encode(), p) for t, p, b in top if p is not None and p > _UNKNOWN]
    least, logp, row = min((p for _, p in shown), default=np.nan), dict[str, float](), dict[str, Any]()
    for label in labels:
        if whole := [p for token, p in shown if token == label.encode()]:  # two ids can spell one label
            logp[label] = float(np.logaddexp.reduce(whole))
        begun = [p for token, p in shown if token and label.encode().startswith(token)]
        row |= {f"logp_{label}": logp.get(label, np.nan), f"bound_{label}": np.nan if whole else max([least, *begun])}
    best = [label for label, p in logp.items() if p == max(logp.values())]
    answer, failure = (best[0], "") if len(best) == 1 else (None, "tie") if best else parse_label(text, finish, labels)
    row |= {"in_label_mass": float(np.exp([*logp.values()]).sum()) if shown else np.nan}
    return row | {"answer": answer, "failure": failure, "source": "logprob" if best else "text"}


def parse_label(text: str, finish: str, labels: Sequence[str]) -> tuple[str | None, str]:
    """The label that the whole text is, bar quotes, brackets, emphasis and a lead such as "Score:"; else why not.

    Failures: "refusal", "cut", "empty", "off the scale" (a number that is no label), "several labels", "not alone" (one
    label among other words), "no label". Nothing is searched for inside a sentence, so a quoted rubric gives no score.

    >>> parse_label("**Score: 4**", "stop", list("12345")), parse_label("4.5", "stop", list("12345"))
    (('4', ''), (None, 'off the scale'))
    """
    if finish in ("refusal", "content_filter", "length"):
        return None, "cut" if finish == "length" else "refusal"
    if not (core := _bare(text)):
        return None, "empty"
    core = _bare(_LEAD.sub("", core, count=1)) if _LEAD.match(core) else core
    if len(same := [label for label in labels if _bare(label).casefold() == core.casefold()]) == 1:
        return same[0], ""
    if not same and re.fullmatch(r"[-+]?\d*[.,/]?\d+", core):
        return None, "off the scale"
    inside = [label for label in labels if re.search(rf"(?<!\w){re.escape(_bare(label))}(?!\w)", text, re.IGNORECASE)]
    return None, "several labels" if len(same + inside) > 1 else "not alone" if inside else "no label"


def _bare(text: str) -> str:
    return text.strip(_WRAPPERS).rstrip(".").strip(_WRAPPERS)
