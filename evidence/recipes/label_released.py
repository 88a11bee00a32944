"""Do judges favour what they made, and what they are told they made? Two studies whose judgments are public.

`label_play_favorites`: nine judges and people rate nine models' texts, unlabelled (Spiliopoulou et al., 2508.06709).
`label_panickssery`: three judges choose between their own and another summary, unlabelled, with the sources' names, and
with these exchanged (Panickssery et al., 2404.13076). Both are other authors' data: they bear on the questions of Chae
et al. (2608.18091), not on its numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import logit

from reprolib.evidence.public import public_study
from reprolib.metrics.mixed import cell_model, judge_contrasts, permutation_p
from reprolib.metrics.resampling import Array, Estimate, bootstrap_each, cluster_sums

MODELS = {
    "anthropic.claude-v2:1": "Claude 2.1",
    "anthropic.claude-3-sonnet-20240229-v1:0": "Claude 3 Sonnet",
    "anthropic.claude-3-5-sonnet-20241022-v2:0": "Claude 3.5 Sonnet",
    "gpt-3.5-turbo": "GPT-3.5 Turbo",
    "gpt-4o": "GPT-4o",
    "meta.llama3-1-8b-instruct-v1:0": "Llama 3.1 8B",
    "meta.llama3-1-70b-instruct-v1:0": "Llama 3.1 70B",
    "mistral.mistral-7b-instruct-v0:2": "Mistral 7B",
    "mistral.mistral-large-2407-v1:0": "Mistral Large 2",
}
DIMENSIONS = {"faithfulness": 4, "correctness": 2}  # the highest rating; the lowest is 0

DATA = ("cnn", "xsum")
JUDGES = {"gpt4": "GPT-4", "gpt35": "GPT-3.5", "llama": "Llama 2 7B"}
ARMS = ("none", "correct", "wrong", "random")
PAIRED = {  # effect: the arm whose mean is taken off the other's, on the same pairs of texts
    "correct - none": ("correct", "none"),
    "wrong - none": ("wrong", "none"),
    "correct - wrong": ("correct", "wrong"),
    "random correct - wrong": ("random correct", "wrong"),
    "random correct - correct": ("random correct", "correct"),
    "random wrong - wrong": ("random wrong", "wrong"),
}
UNPAIRED = "random correct - random wrong"  # different pairs, assigned by a coin
OTHERS = ("all", "human", "models")
_SURE = 1e-7  # probabilities are read no closer to 0 or 1: some are printed as 1


@public_study("label_play_favorites", sources=[f"label_favorites_{x}" for x in DIMENSIONS], on_page=False)
def play_favorites(paths: dict[str, Path]) -> dict[str, Any]:
    """Blind self- and family-preference in rating points, by dimension (`DIMENSIONS`: 0 to 4, and 0 to 2).

    `counts`: released rows; `unparsed` (no number) and `off_scale` ratings, both left out; `prompts`; `texts` rated by
    people; `missing`, judge x author: prompts without a rating. `ratings`: how often each value occurs. `matrix`: mean
    rating, judges in rows, authors in columns, both as `MODELS`; `human`: people's mean, by author, a text once.
    `judges`, each with an interval from 10,000 draws of prompts:
      gap         mean of the own texts' ratings less that of all others' (rows weigh equally);
      human_gap   the same difference in people's ratings of the very texts that the judge rated;
      excess      gap - human_gap;
      contrast    M / (M - 1) times the judge's diagonal cell of `matrix` less its row and column means (M = 9): strict
                  judges and good authors drop out;
      adjusted, kin  own and family coefficients of least squares in the judge's rows: rating on own, family, human
                  rating (t interval, clustered by prompt). Family: another model of the same company.
    `pooled`, by model and term (own or family):
      gaps        unweighted mean of `gap`, prompts resampled; contrasts the mean of `contrast`, prompts resampled;
      cells       cell means on own, judge and author, t(63); judges: `contrast` over judges, t(8);
      cells+family   with a family term, t(62);
      human       rows: own, family, judge, and a slope of the human rating for each judge, as the source study has it;
      human+author   the same and an author intercept; both with t intervals clustered by prompt.
    What treats rows or prompts as the evidence (all but cells and judges) is about these judges and authors only.
    `permutation_p`: of `permutation_p` over author names, 9,999 draws, two-sided.
    """
    return {name: dimension(pd.read_csv(paths[f"label_favorites_{name}"]), top) for name, top in DIMENSIONS.items()}


def dimension(released: pd.DataFrame, top: int, *, draws: int = 10_000) -> dict[str, Any]:
    """One dimension of `play_favorites`, from its released rows; ratings are from 0 to `top`."""
    names = list(MODELS.values())
    numbers = pd.to_numeric(released["rating"], errors="coerce")
    counts = {"rows": len(released), "unparsed": int(numbers.isna().sum())}
    counts["off_scale"] = int((~numbers.dropna().between(0, top)).sum())
    table = released.assign(judge=released["judge"].map(MODELS), author=released["model"].map(MODELS), value=numbers)
    table = table[numbers.between(0, top)].rename(columns={"gt": "human"})
    table["item"] = table["author"] + table["prompt_id"]
    texts = table.drop_duplicates("item")
    grid = table.groupby(["judge", "author"])["value"].agg(["mean", "size"]).unstack()
    size = grid["size"].reindex(index=names, columns=names, fill_value=0)
    counts |= {"prompts": table["prompt_id"].nunique(), "texts": len(texts)}
    counts["missing"] = (counts["prompts"] - size).to_numpy().astype(int).tolist()
    by_judge, pooled = _resampled(table, names, draws)
    for judge, entry in zip(names, by_judge, strict=True):
        own, kin = _rows_model(table[table["judge"] == judge], "own + kin + human")
        entry |= {"adjusted": own, "kin": kin}
    cells = {"cells": cell_model(table), "judges": judge_contrasts(table)}
    pooled += [{"model": name, "term": "own", **_numbers(estimate)} for name, estimate in cells.items()]
    means = table.groupby(["judge", "author"], as_index=False)["value"].mean()
    models = {
        "cells+family": (means, "own + kin + C(judge) + C(author)"),
        "human": (table, "own + kin + C(judge) + C(judge):human"),
        "human+author": (table, "own + kin + C(judge) + C(judge):human + C(author)"),
    }
    for name, (data, terms) in models.items():
        fitted = zip(("own", "family"), _rows_model(data, terms), strict=True)
        pooled += [{"model": name, "term": term, **estimate} for term, estimate in fitted]
    return {
        "counts": counts,
        "ratings": {str(k): int(n) for k, n in table["value"].value_counts().sort_index().items()},
        "matrix": grid["mean"].reindex(index=names, columns=names).to_numpy().round(4).tolist(),
        "human": texts.groupby("author")["human"].mean()[names].round(4).tolist(),
        "judges": [{"judge": judge, **entry} for judge, entry in zip(names, by_judge, strict=True)],
        "pooled": pooled,
        "permutation_p": permutation_p(table),
    }


def _resampled(table: pd.DataFrame, names: list[str], draws: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """`gap`, `human_gap`, `excess` and `contrast` of each judge, and the pooled two, on the same draws of prompts."""
    m = len(names)
    cell = m * pd.Categorical(table["judge"], names).codes + pd.Categorical(table["author"], names).codes
    parts = table[["value", "human"]].assign(n=1.0).to_numpy()
    sums = cluster_sums((np.eye(m * m)[cell][:, :, None] * parts[:, None]).reshape(len(table), -1), table["prompt_id"])
    own = np.eye(m, dtype=bool)

    def statistic(sums: Array) -> Array:
        totals = sums.reshape(*sums.shape[:-1], m, m, 3)
        diagonal, rest = ((totals * mask[..., None]).sum(axis=-2) for mask in (own, ~own))
        with np.errstate(invalid="ignore", divide="ignore"):  # a draw may hold no prompt of a cell
            gap, human = (diagonal[..., k] / diagonal[..., 2] - rest[..., k] / rest[..., 2] for k in (0, 1))
            x = totals[..., 0] / totals[..., 2]
        x = x - x.mean(axis=-1, keepdims=True) - x.mean(axis=-2, keepdims=True) + x.mean(axis=(-1, -2), keepdims=True)
        contrast = x[..., range(m), range(m)] * m / (m - 1)
        means = [part.mean(axis=-1, keepdims=True) for part in (gap, contrast)]
        return np.concatenate([gap, human, gap - human, contrast, *means], axis=-1)

    found = [_numbers(estimate) for estimate in bootstrap_each(sums, statistic, draws=draws)]
    kinds = ("gap", "human_gap", "excess", "contrast")
    judges = [{kind: found[k * m + j] for k, kind in enumerate(kinds)} for j in range(m)]
    return judges, [{"model": name, "term": "own", **found[i]} for name, i in (("gaps", -2), ("contrasts", -1))]


def _rows_model(table: pd.DataFrame, terms: str) -> list[dict[str, Any]]:
    """Coefficients of own and kin, t intervals; clustered by prompt where rows have one."""
    import statsmodels.formula.api as smf

    family = [table[column].str.extract("([A-Za-z]+)", expand=False) for column in ("judge", "author")]
    own = table["judge"] == table["author"]
    data = table.assign(own=own.astype(float), kin=((family[0] == family[1]) & ~own).astype(float))
    model = smf.ols(f"value ~ {terms}", data)
    clusters = pd.factorize(table["prompt_id"])[0] if "prompt_id" in table else None
    how = {} if clusters is None else {"cov_type": "cluster", "cov_kwds": {"groups": clusters}, "use_t": True}
    fit = model.fit(**how)
    freedom = fit.df_resid if clusters is None else clusters.max()
    half = stats.t.ppf(0.975, freedom) * fit.bse
    ends = pd.DataFrame({"value": fit.params, "low": fit.params - half, "high": fit.params + half})
    return [{**ends.loc[term].round(5).to_dict(), "n": len(table)} for term in ("own", "kin")]


_CHOICES = [f"overlap_{data}_choices_{judge}" for data, judge in product(DATA, JUDGES)]
_LABELLED = [f"label_{data}_{arm}_{judge}" for data, arm, judge in product(DATA, ARMS[1:], JUDGES)]


@public_study("label_panickssery", sources=_CHOICES + _LABELLED, on_page=False)
def panickssery(paths: dict[str, Path]) -> dict[str, Any]:
    """How naming the sources moves a judge's choice between its own summary and another's, by data set and judge.

    Arms: none (no source shown), correct (each text under its true source), wrong (sources exchanged), random (a coin a
    row for one or the other: a second run of both, not a third kind of label). Sources appear under the authors' short
    names (gpt4, gpt35, llama, claude, human), so that a label also names a model of some reputation. A row is an
    article and the other text's author, 4,000 an arm.

    `forward` showed the own text first, `backward` second. GPT-3.5 and GPT-4: a released probability is that of the
    option *chosen*, so that an own text not chosen has 1 - p. Scales of `effects`:
      probability  of the own text, mean of both orders; where only the mean is released (XSum, none and correct), that;
      log_odds     of the own text, mean of both orders: what a preference for a place adds cancels. Probabilities are
                   read no closer to 0 or 1 than 1e-7. XSum's none and correct arms have none.
    Llama 2: the labelled arms hold one order only, own text first, and `self_preference` is the first option's
    probability; all its effects, both scales, are of that order, and its levels are no preference for the own text.

    `effects`: means over rows, intervals from 10,000 draws of articles; `other`: all, human or models. `PAIRED`
    differences are of rows present in both arms; `UNPAIRED` is the mean of truly labelled random rows less that of the
    exchanged. "random correct - wrong" is the gap on the same pairs where the correct arm has no log-odds. The two
    repeats (random less the arm of the same labels) should be 0. What the files lack is absent.
    `positions`: shares of rows that name the first option in both orders, the second in both, the own text in both, the
    other in both; Llama 2's labelled arms, of one order, only `own_first`, the share naming the first option there.
    `levels`: mean of each scale by arm. A judge that names the first option whatever the labels has effects of 0.
    Everywhere, `n` counts articles and `rows` rows.

    `files`, by arm: `rows`; `foreign` (of the other data set: dropped); `repeated` (a pair given again: dropped);
    `agree`, `reversed`: rows of two orders whose released self_preference is within 0.01 of the own text's mean
    probability, or else of the other text's (XSum, wrong: all but ties; Llama 2's of XSum answers another question);
    `clipped`: probabilities at the limit; `below_half`: chosen options with less than 0.5 (read as released).
    `identical`: random rows with a released probability that equals, to the last digit, that of the arm with the same
    labels, and of the other one.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ("files", "identical", "levels", "positions")}
    effects = []
    for data, judge in product(DATA, JUDGES):
        key = {"data": data, "judge": judge}
        rows = {arm: json.loads(paths[_source(data, judge, arm)].read_text()) for arm in ARMS}
        articles, tables = {row["key"] for row in rows["none"]}, {}
        for arm in ARMS:
            tables[arm], counts = read_choices(rows[arm], judge, articles)
            found["files"].append({**key, "arm": arm, **counts})
        if judge == "llama":
            del tables["random"]  # four copies of the rows against people of the two other arms
            tables = {arm: table.assign(backward=np.nan) for arm, table in tables.items()}
        else:
            found["identical"].append({**key, **_identical(rows, judge)})
        for arm, table in tables.items():
            found["positions"].append({**key, "arm": arm, **_positions(table)})
            means = {scale: _number(by.mean()) for scale, by in scales(table).items() if by.notna().any()}
            found["levels"].append({**key, "arm": arm, **means})
        effects += [{**key, **entry} for entry in label_shifts(tables)]
    return {**found, "effects": effects}


def read_choices(
    rows: list[dict[str, Any]], judge: str, articles: Iterable[str]
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Released rows as a table by (key, other), and what was counted; the fields are told in `panickssery`.

    Columns: `forward` and `backward`, the own text's probability when shown first and second (NaN if not released);
    `mean`, the released mean of both orders, only where they are not; `first`, `second`: the options chosen, or "";
    `truly`: whether the own text bore the judge's name (random arm; else NaN).
    """
    known, seen = set(articles), set()
    counts = dict.fromkeys(("rows", "foreign", "repeated", "agree", "reversed", "clipped", "below_half"), 0)
    table = []
    for row in rows:
        counts["rows"] += 1
        if row["key"] not in known:
            counts["foreign"] += 1
            continue
        if (row["key"], row["model"]) in seen:
            counts["repeated"] += 1
            continue
        seen.add((row["key"], row["model"]))
        chosen = [row.get("forward_comparison", ""), row.get("backward_comparison", "")]
        said = [_said(row, way) for way in ("forward", "backward")]
        own, mean = [np.nan, np.nan], np.nan
        if "forward_comparison_output" in row:
            outputs = [row[f"{way}_comparison_output"] for way in ("forward", "backward")]
            own = [p[option] / (p["1"] + p["2"]) for p, option in zip(outputs, "12", strict=True)]
        elif None not in said:
            own = [p if x == option else 1 - p for p, x, option in zip(said, chosen, "12", strict=True)]
            counts["below_half"] += sum(p < 0.5 for p in said)
        elif judge == "llama":
            own = [row["self_preference"], np.nan]
        else:
            mean = row["self_preference"]
        if not np.isnan(own[1]):
            agrees, other = (abs(p - row["self_preference"]) < 0.01 for p in (np.mean(own), 1 - np.mean(own)))
            counts["agree"] += bool(agrees)
            counts["reversed"] += bool(other and not agrees)
        counts["clipped"] += sum(p < _SURE or p > 1 - _SURE for p in own)
        truly = float(row["random_labels"][0] == judge) if "random_labels" in row else np.nan
        table.append([row["key"], row["model"], *own, mean, *chosen, truly])
    columns = ["key", "other", "forward", "backward", "mean", "first", "second", "truly"]
    return pd.DataFrame(table, columns=columns).set_index(["key", "other"]), counts


def scales(table: pd.DataFrame) -> dict[str, pd.Series]:
    """`probability` and `log_odds` of the own text for each row of `read_choices`, NaN where not released."""
    both = table[["forward", "backward"]].clip(_SURE, 1 - _SURE)
    orders = both if both["backward"].notna().any() else both[["forward"]]
    probability = table["mean"].fillna(orders.mean(axis=1, skipna=False))
    return {"probability": probability, "log_odds": logit(orders).mean(axis=1, skipna=False)}


def label_shifts(tables: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """`effects` of one judge and data set: `tables` of `read_choices` by arm; `random` may be absent."""
    found = []
    for scale in ("probability", "log_odds"):
        values = {arm: scales(table)[scale] for arm, table in tables.items()}
        if "random" in tables:
            truly = tables["random"]["truly"] == 1
            drawn = values.pop("random")
            values |= {"random correct": drawn.where(truly), "random wrong": drawn.where(~truly)}
        wide = pd.DataFrame(values).reindex(columns=["none", "correct", "wrong", "random correct", "random wrong"])
        each = pd.DataFrame({name: wide[a] - wide[b] for name, (a, b) in PAIRED.items()})
        each = each.join(wide[["random correct", "random wrong"]])
        human = wide.index.get_level_values("other") == "human"
        groups = np.stack([np.ones(len(wide)), human, ~human], axis=1)
        parts = np.stack([each.fillna(0).to_numpy(), each.notna().to_numpy()], axis=1)
        sums = cluster_sums((groups[:, :, None, None] * parts[:, None]).reshape(len(wide), -1), wide.index.codes[0])
        rows = sums.sum(axis=0).reshape(len(OTHERS), 2, -1)[:, 1]

        def statistic(sums: Array, k: int = len(PAIRED)) -> Array:
            totals = sums.reshape(*sums.shape[:-1], len(OTHERS), 2, -1)
            with np.errstate(invalid="ignore", divide="ignore"):
                means = totals[..., 0, :] / totals[..., 1, :]
            unpaired = means[..., k : k + 1] - means[..., k + 1 :]
            return np.concatenate([means[..., :k], unpaired], axis=-1).reshape(*sums.shape[:-1], -1)

        names = list(product(OTHERS, [*PAIRED, UNPAIRED]))
        numbers = np.concatenate([rows[:, : len(PAIRED)], rows[:, len(PAIRED) :].sum(axis=1, keepdims=True)], axis=1)
        for (other, effect), estimate, n in zip(names, bootstrap_each(sums, statistic), numbers.ravel(), strict=True):
            if np.isfinite(estimate.value):
                entry = {"scale": scale, "other": other, "effect": effect, **_numbers(estimate)}
                found.append(entry | {"rows": int(n)})
    return found


def _source(data: str, judge: str, arm: str) -> str:
    return f"overlap_{data}_choices_{judge}" if arm == "none" else f"label_{data}_{arm}_{judge}"


def _said(row: dict[str, Any], way: str) -> Any:
    return row.get(f"{way}_probability", row.get(f"{way}_comparison_probability"))


def _positions(table: pd.DataFrame) -> dict[str, float]:
    """Shares of rows by the options named in the two orders; of one order, the share that names the first."""
    if (table["first"] == "").any():
        return {"own_first": _number((table["forward"] > 0.5).mean())}
    pairs = table["first"] + table["second"]
    shares = {"first": "11", "second": "22", "own": "12", "other": "21"}
    return {name: _number((pairs == options).mean()) for name, options in shares.items()}


def _identical(rows: dict[str, list[dict[str, Any]]], judge: str) -> dict[str, int]:
    """Random rows that share a probability with the arm of the same labels, and with the arm of the other ones."""
    arms = {arm: {(row["key"], row["model"]): row for row in rows[arm]} for arm in ("correct", "wrong")}
    counts = {"same": 0, "other": 0}
    for row in rows["random"]:
        true = row["random_labels"][0] == judge
        for name, arm in (("same", true), ("other", not true)):
            twin = arms["correct" if arm else "wrong"][row["key"], row["model"]]
            counts[name] += any(_said(row, way) == _said(twin, way) for way in ("forward", "backward"))
    return counts


def _number(value: float) -> float:
    return round(float(value), 5)


def _numbers(estimate: Estimate) -> dict[str, Any]:
    """Value and interval of an estimate, and the units behind it."""
    ends = {name: _number(getattr(estimate, name)) for name in ("value", "low", "high")}
    return {**ends, "n": estimate.n}
