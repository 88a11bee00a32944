"""Win rates and the preference leakage score (PLS): Li et al., arXiv 2502.01534, section 3 and Table 8.

A pair of students i and j is judged twice: by judge i, related to student i's teacher, and by judge j.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from reprolib.errors import ParameterError

TieRule = Literal["strict", "half", "drop"]
TIE_RULES: tuple[TieRule, ...] = get_args(TieRule)


def win_rate(wins: npt.ArrayLike, ties: npt.ArrayLike, losses: npt.ArrayLike, *, tie_rule: TieRule = "strict") -> Any:
    """Win rate between 0 and 1 from counts or rates in any one unit; NaN where nothing was judged (0/0).

    `tie_rule`: "strict" counts a tie as not won and keeps it in the denominator (what the paper's Table 1 does),
    "half" counts it as half a win, "drop" leaves it out.

    >>> [round(float(win_rate(38.4, 34.6, 27.0, tie_rule=rule)), 3) for rule in TIE_RULES]
    [0.384, 0.557, 0.587]
    """
    if tie_rule not in TIE_RULES:
        raise ParameterError(f"tie_rule is {tie_rule!r}", hint=f"allowed: {', '.join(TIE_RULES)}")
    w, t, x = (np.asarray(a, dtype=float) for a in (wins, ties, losses))
    won = w + t / 2 if tie_rule == "half" else w
    with np.errstate(invalid="ignore", divide="ignore"):
        return won / (w + x if tie_rule == "drop" else w + t + x)


def pls(own_i: npt.ArrayLike, other_i: npt.ArrayLike, own_j: npt.ArrayLike, other_j: npt.ArrayLike) -> Any:
    """Preference leakage score, between -1 and 1; NaN where undefined (a student that neither judge ever lets win).

    `own_i` and `other_i` are the win rates of student i under judges i and j, `own_j` and `other_j` those of student j
    under judges j and i. The paper's two steps (each win rate's excess over the mean of the two judges, relative to
    that mean, averaged over the students) come down to half of (a - b)/(a + b) + (c - d)/(c + d).

    >>> round(float(pls(55.1, 36.8, 63.2, 44.9)), 3)    # the paper's example, 18.4 %
    0.184
    """
    a, b, c, d = (np.asarray(x, dtype=float) for x in (own_i, other_i, own_j, other_j))
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((a - b) / (a + b) + (c - d) / (c + d)) / 2


def pls_of_shares(shares: npt.ArrayLike, *, tie_rule: TieRule = "strict") -> Any:
    """PLS from two rows of (i wins, tie, j wins), judge i's row first: shape (..., 2, 3) becomes (...)."""
    win, tie, loss = np.moveaxis(np.asarray(shares, dtype=float), -1, 0)
    i, j = win_rate(win, tie, loss, tie_rule=tie_rule), win_rate(loss, tie, win, tie_rule=tie_rule)
    return pls(i[..., 0], i[..., 1], j[..., 1], j[..., 0])


def leakage_log_odds(margin_i: npt.ArrayLike, margin_j: npt.ArrayLike) -> Any:
    """Leakage in nats for judges that give probabilities: half of how much further judge i leans to student i.

    A margin is log p(student i is better) - log p(student j is better), averaged over both orders (so that a liking for
    a position cancels) and over pairs. Two judges that each add b nats to their own student give b; at equal students
    and without ties that is a PLS of 2 * sigmoid(b) - 1.
    """
    return np.subtract(margin_i, margin_j) / 2


def two_game_verdict(*games: str) -> str:
    """One verdict for a question judged in both orders; verdicts name the *texts* "A", "B", "tie" or "unparsed".

    A text wins only if it wins both games; all else is a tie (the paper's `analysis/parse_arenahard.py`).
    """
    return games[0] if games in (("A", "A"), ("B", "B")) else "tie"
