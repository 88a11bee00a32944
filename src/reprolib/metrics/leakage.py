"""Win rates and the preference leakage score (PLS): Li et al., arXiv 2502.01534, section 3 and Table 8.

A pair of students i and j is judged twice: by judge i, related to student i's teacher, and by judge j.

Error bias and its calibration (Table 7): one entry a pair, seen from a *target*, the answer that a judge may favour:
`judged` is the share of orders in which the judge picks it (0 to 1, NaN: no verdict), `human` whether people do (1 or
0, NaN: undecided).
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from reprolib.errors import ParameterError, pick
from reprolib.metrics.resampling import Array, Estimate, bootstrap, cluster_sums

TieRule = Literal["strict", "half", "drop"]
TIE_RULES: tuple[TieRule, ...] = get_args(TieRule)
METHODS = ("none", "label-free", "label-using", "logistic")


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

    A text wins only if it wins both games; all else is a tie (the paper's `analysis/parse_arenahard.py`). A single game
    stands for itself.
    """
    return games[0] if {*games} in ({"A"}, {"B"}) else "tie"


def error_sums(judged: npt.ArrayLike, human: npt.ArrayLike) -> Array:
    """Shape (pairs, 4): wrongly the target, people prefer the other, wrongly the other, people prefer the target."""
    j, h = np.asarray(judged, dtype=float), np.asarray(human, dtype=float)
    return np.where(np.isnan(j + h)[:, None], 0, np.stack([j * (1 - h), 1 - h, (1 - j) * h, h], axis=-1))


def error_bias(sums: npt.ArrayLike) -> Any:
    """Error bias in points, -100 to 100, of (..., 4) `error_sums`; NaN where people never prefer one of the two.

    P(judge: target | people: other) - P(judge: other | people: target), which is the equal-opportunity self-preference
    of Wataoka et al. (arXiv 2410.21819), P(judge: target | people: target) - P(judge: other | people: other).

    >>> float(error_bias(error_sums([1, 1, 1, 0], [0, 0, 1, 1]).sum(axis=0)))  # wrong in 2 of 2, and in 1 of 2
    50.0
    """
    false_target, other, false_other, target = np.moveaxis(np.asarray(sums, dtype=float), -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return 100 * (false_target / other - false_other / target)


def estimate(judged: Any, human: Any, questions: Any, *, before: Any = None, **settings: Any) -> Estimate:
    """Error bias with its interval over questions; with verdicts `before` a remedy: the growth of its *size*."""
    if before is None:
        return bootstrap(cluster_sums(error_sums(judged, human), questions), error_bias, **settings)
    both = np.where(np.isnan(np.add(before, judged)), np.nan, human)
    sums = cluster_sums(np.hstack([error_sums(judged, both), error_sums(before, both)]), questions)
    return bootstrap(sums, lambda s: abs(error_bias(s[..., :4])) - abs(error_bias(s[..., 4:])), **settings)


def calibrated(margin: npt.ArrayLike, human: npt.ArrayLike, questions: Any, *, method: str, folds: int = 5) -> Array:
    """1 where the judge picks the target, else 0, once its margin is calibrated on *other* questions (`folds` parts).

    `margin`: log p(target) - log p(other), averaged over both orders. Methods: "none"; "label-free" subtracts the mean
    margin; "label-using" the shift at which both errors are equal; "logistic" predicts people from the margin (Platt).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_curve
    from sklearn.model_selection import GroupKFold

    m, h, method = np.asarray(margin, float), np.asarray(human, float), pick("method", method, {k: k for k in METHODS})
    picked = np.zeros(len(m))
    for fit, rest in GroupKFold(folds).split(m, groups=questions):
        score, shift = m[rest], m[fit].mean() if method == "label-free" else 0.0
        if method == "label-using":
            false, true, cuts = roc_curve(h[fit], m[fit], drop_intermediate=False)
            equal = np.abs(false + true - 1).argmin()
            shift = cuts[equal : equal + 2].mean()
        if method == "logistic":
            score = LogisticRegression(C=1e6).fit(m[fit, None], h[fit]).decision_function(m[rest, None])
        picked[rest] = score > shift
    return picked
