"""Do judges dislike human summaries, or just differences? Overlap bias (Fang et al. 2026), released and recorded data.

Here: what others' judges chose, joined with overlap; pairs of summaries as prompts; a judge's record; and the effects
that the chapter shows.

Each pair is shown in both orders. With A the generated (or, of two models', the larger model's) summary, `theta` is the
mean over both orders of the log-odds of A, and `pi` its log-odds when shown first less when shown second.
"""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from reprolib.evidence import PAIRWISE, download
from reprolib.evidence.public import public_study
from reprolib.evidence.recorded import Record, ask, read_record, store_folder, verdicts, write_record
from reprolib.metrics.overlap import LABELS, READINGS, Overlap, overlap, slope, tie_label
from reprolib.metrics.resampling import Estimate

if TYPE_CHECKING:
    from reprolib.inference.judge import Judge

STUDY = "overlap"
JUDGES = {"gpt4": "GPT-4", "gpt35": "GPT-3.5", "llama": "Llama 2"}  # of the released choices
REWRITER = "qwen2.5-coder-1.5b"  # wrote the rephrased summaries of the record
NAMES = ("summary_1", "summary_2")
TEMPERATURE = 0.7  # the paper's, for every model
RANK = ("gpt4", "claude", "gpt35", "llama", "human")  # text A of a pair is the earlier one: the larger model's
PROMPT = """Below are a news article and two summaries of it. Name the summary that is better.

Article:
{article}

summary_1:
{first}

summary_2:
{second}

Which one is better? Reply with summary_1 or summary_2 only."""
REWRITES = {
    "reworded": "Put this summary into your own words, in another order. Keep its long phrases and its length. "
    "Reply with the new summary only.\n\n{text}",
    "touched": "Repeat this summary word for word, but replace three or four words by synonyms. "
    "Reply with the result only.\n\n{text}",
}
_PAIRS = [  # of the record: condition, arm, text A, text B
    *(("human", arm, author, "human") for arm in ("", "plain") for author in RANK[:4]),
    *(("models", "", *pair) for pair in [("gpt4", "claude"), ("gpt4", "llama"), ("claude", "gpt35")]),
    *((f"rewritten_{x}", "", f"{kind} {x}", x) for x in ("human", "gpt4") for kind in REWRITES),
    *(("same", "", x, x) for x in ("human", "gpt4")),
]
_TEXTS = [f"overlap_{data}_summaries_{author}" for data in ("cnn", "xsum") for author in RANK]
_CHOICES = [f"overlap_{data}_choices_{judge}" for data in ("cnn", "xsum") for judge in JUDGES]
_SURE = 1e-7  # probabilities are read no closer to 0 or 1: some are printed as 1


@public_study("overlap", sources=_TEXTS + _CHOICES, on_page=False)
def released(paths: dict[str, Path]) -> dict[str, Any]:
    """Choices of three judges between their own and another summary (Panickssery et al. 2024), joined with overlap.

    `pairs`: by data set, judge and pair of authors, a value an article: the four overlaps of A with B, words, index in
    `LABELS`, `chosen` (mean probability of A) and, where both orders' probabilities are released, `theta` and `pi`.
    `readings`: how each of `READINGS` moves the overlap with 400 human summaries. `verdict_slopes`: of pairs with a
    human text, where labels differ.
    """
    pairs, some = [], []
    for data in ("cnn", "xsum"):
        texts = {author: json.loads(paths[f"overlap_{data}_summaries_{author}"].read_text()) for author in RANK}
        ids = [*texts["human"]]
        some += [(texts[a][i], texts["human"][i]) for a, i in product(RANK[:4], ids[:50])]
        for judge in JUDGES:
            rows = pd.DataFrame(json.loads(paths[f"overlap_{data}_choices_{judge}"].read_text())).set_index("key")
            for other, part in rows.groupby("model"):
                a, b = sorted((judge, str(other)), key=RANK.index)
                numbers = pd.DataFrame([overlap(texts[a][i], texts[b][i]) for i in ids]).round(3).to_dict("list")
                words = {f"words_{k}": [len(texts[x][i].split()) for i in ids] for k, x in (("a", a), ("b", b))}
                choices = _choices(part.loc[ids], own_is_a=a == judge)
                pairs.append({"data": data, "judge": judge, "a": a, "b": b, **numbers, **words, **choices})
    columns = product({"as released": str, "plain spaces": plain_spaces}.items(), READINGS.items())
    values = {(t, v): [sum(overlap(cut(a), cut(b), **how)) / 4 for a, b in some] for (t, cut), (v, how) in columns}
    table, base = pd.DataFrame(values), pd.Series(values["as released", "base"])
    moved = table.sub(base, axis=0).agg(["mean", "min", "max"]).T.assign(correlation=table.corrwith(base))
    readings = moved.rename_axis(["text", "reading"]).reset_index().to_dict("records")
    by = released_pairs({"pairs": pairs}).query("human").groupby(["judge", "data"])
    logits = [(*key, verdict_slope(part)) for key, part in by if part["label"].nunique() > 1]
    slopes = [{"judge": j, "data": d, "value": e.value, "low": e.low, "high": e.high} for j, d, e in logits]
    return {"pairs": pairs, "readings": readings, "verdict_slopes": slopes}


def _choices(rows: pd.DataFrame, *, own_is_a: bool) -> dict[str, list[float]]:
    """Labels, `chosen`, `theta` and `pi` for one pair of authors; "forward" showed the judge's own summary first.

    Some files hold the probability of the option chosen, some those of both options, some none but the mean of both
    orders. (Llama 2's scores of XSum have exchanged names: its self_preference is what its recognition answers give.)
    """
    own = [rows[f"{way}_comparison"] == option for way, option in (("forward", "1"), ("backward", "2"))]
    labels = [LABELS.index(tie_label(*("AB"[not x] for x in pair))) for pair in zip(*own, strict=True)]  # own as A
    chosen = rows["self_preference"] if own_is_a else 1 - rows["self_preference"]
    result = {"label": [k if own_is_a or k > 1 else 1 - k for k in labels]}
    if "forward_comparison_output" in rows:
        both = rows.filter(regex="comparison_output").map(lambda p: max(p.values()) / sum(p.values()))
        rows = both.rename(columns=lambda c: c.replace("output", "probability"))
    if "forward_comparison_probability" in rows:
        said = rows[["forward_comparison_probability", "backward_comparison_probability"]].to_numpy()
        p = np.where(np.transpose(own), said, 1 - said).clip(_SURE, 1 - _SURE)
        odds, chosen = logit(p), pd.Series(p.mean(axis=1) if own_is_a else 1 - p.mean(axis=1))
        result["theta"] = (odds.mean(axis=1) * (1 if own_is_a else -1)).round(2).tolist()
        result["pi"] = (odds[:, 0] - odds[:, 1]).round(2).tolist()
    return result | {"chosen": chosen.round(3).tolist()}


def verdict_slope(pairs: pd.DataFrame) -> Estimate:
    """Slope on overlap of a logit of "A was chosen" in each order, beside order, their product, and length.

    What drawn verdicts allow without probabilities; standard errors clustered by article.
    """
    import statsmodels.api as sm

    rows = pairs[pairs["label"] != "other"]
    games = [rows.assign(order=o, won=rows["label"].isin([LABELS[0], LABELS[k]])) for o, k in ((0.5, 2), (-0.5, 3))]
    both = pd.concat(games, ignore_index=True)
    design = pd.get_dummies(both[["cell"]], dtype=float).assign(order=both["order"], ratio=both["log_ratio"])
    design = design.assign(overlap=both["overlap"], product=both["overlap"] * both["order"]).loc[:, lambda t: t.any()]
    groups = pd.factorize(both["cluster_id"])[0]
    fit = sm.Logit(both["won"].astype(float), design).fit(disp=0, cov_type="cluster", cov_kwds={"groups": groups})
    low, high = fit.conf_int().loc["overlap"]
    return Estimate(fit.params["overlap"], low, high, groups.max() + 1, "logit, errors clustered by article, 95%")


def released_pairs(values: dict[str, Any]) -> pd.DataFrame:
    """The public study "overlap", a row a pair: shares 0 to 1, log-odds in nats, `overlap`, `label`, `cluster_id`."""
    table = pd.concat([pd.DataFrame(block).rename_axis("article").reset_index() for block in values["pairs"]])
    labels = [LABELS[k] for k in table["label"]]
    return _described(table.assign(label=labels, cluster_id=table["data"] + table["article"].astype(str)))


def recorded_pairs(judge: str, *, arm: str = "") -> tuple[pd.DataFrame, Record]:
    """The record of `judge` in the form of `released_pairs`, with `condition` and `in_label_mass`, and the record."""
    kept = read_record(STUDY, judge, PAIRWISE)
    rows = kept.table[kept.table["arm"] == arm]
    rows = rows.assign(odds=(rows["logp_summary_1"] - rows["logp_summary_2"]) * (1 - 2 * rows["order"]))
    same = ["cluster_id", "condition", "author_a", "author_b", *Overlap._fields, "words_a", "words_b"]
    wide = rows.pivot(index=same, columns="order", values=["odds", "verdict", "in_label_mass"])
    first, second = (wide["odds"][k].astype(float) for k in (0, 1))
    table = pd.DataFrame({"theta": (first + second) / 2, "pi": first - second})
    table["chosen"] = (expit(first) + expit(second)) / 2
    table["in_label_mass"] = wide["in_label_mass"].astype(float).mean(axis=1)
    table["label"] = [tie_label(*pair) for pair in wide["verdict"].to_numpy()]
    table = table.reset_index().rename(columns={"author_a": "a", "author_b": "b"})
    return _described(table.assign(data="cnn", judge=judge)), kept


def _described(table: pd.DataFrame) -> pd.DataFrame:
    cell = table["judge"] + " " + table["data"] + " " + table["a"] + " " + table["b"]
    ratio = np.log(table["words_a"] / table["words_b"])
    mean, human = table[[*Overlap._fields]].mean(axis=1), table["b"] == "human"
    return table.assign(overlap=mean, log_ratio=ratio, human=human, cell=cell).reset_index(drop=True)


def effect(
    pairs: pd.DataFrame, of: str = "human", *, y: str = "theta", by: str = "overlap", length: bool = True,
    draws: int = 2_000, seed: int = 0,
) -> Estimate:  # fmt: skip
    """Slope of `y` on overlap (per unit): pairs with a human text ("human"), without ("models"), or their "excess".

    A constant for each judge, data set and pair of authors (held as in the sample); beside overlap the logarithm of the
    ratio of lengths, if `length`; rows without `y` are left out; bootstrap of articles.
    """
    rows = pairs[pairs[y].notna() & ((of == "excess") | (pairs["human"] == (of == "human")))]
    names = [y, by, "log_ratio"][: 2 + length]
    x = rows[names].sub(rows.groupby("cell")[names].transform("mean")).to_numpy(dtype=float)
    design, at = x[:, 1:], 0
    if of == "excess":
        design, at = np.hstack([design, design * rows[["human"]].to_numpy()]), design.shape[1]
    return slope(x[:, 0], design, rows["cluster_id"], at=at, draws=draws, seed=seed)


def plain_spaces(text: str) -> str:
    """Text in one line, without the space before a stop that joined highlights have.

    >>> plain_spaces("He won .\\nShe lost .")
    'He won. She lost.'
    """
    return re.sub(r" (?=[.,;:!?])", "", " ".join(text.split()))


def sampled_articles(n: int) -> dict[str, dict[str, str]]:
    """The first `n` CNN articles of a fixed random order: by id, the `article` and a summary by each author."""
    names = {author: f"overlap_cnn_summaries_{author}" for author in RANK} | {"article": "overlap_cnn_articles"}
    texts = {key: json.loads(download.fetch([name])[name].read_text()) for key, name in names.items()}
    order = np.random.default_rng(20260207).permutation(sorted(texts["article"]))[:n].tolist()
    return {i: {key: table[i] for key, table in texts.items()} for i in order}


def prompts(articles: dict[str, dict[str, str]]) -> pd.DataFrame:
    """Every pair of every article in both orders, neighbours sharing a prefix: columns of a `pairwise` table, `prompt`,
    the four overlaps of A with B, words.

    `condition`: human (base summaries against the human one), models, rewritten_human, rewritten_gpt4, same (one text
    twice). `arm` "plain" repeats the first condition without line breaks.
    """
    rows = []
    for (i, texts), (condition, arm, *authors), order in product(articles.items(), _PAIRS, (0, 1)):
        a, b = (plain_spaces(texts[x]) if arm else texts[x] for x in authors)
        first, second = (b, a) if order else (a, b)
        text = PROMPT.format(article=texts["article"], first=first, second=second)
        row = {"pair_id": ":".join([i, *authors]), "cluster_id": i, "condition": condition, "arm": arm, "order": order}
        row |= {"author_a": authors[0], "author_b": authors[1], **overlap(a, b)._asdict()}
        rows.append(row | {"words_a": len(a.split()), "words_b": len(b.split()), "prompt": text})
    table = pd.DataFrame(rows).sort_values(["cluster_id", "prompt", "pair_id", "order"], ignore_index=True)
    return table.assign(prompt=table["prompt"].map(_chat))


def record(judge: Judge, *, command: str, articles: int | str = 100) -> Record:
    """Judge every pair of the first `articles` articles, and write the record; what a stopped run did is kept.

    Rewritten summaries are `REWRITER`'s. The verdict is the likelier name, or "unparsed" where both names together hold
    less than half of the probability: then the likeliest answer is something else.
    """
    from reprolib.inference.judge import load_judge
    from reprolib.inference.store import Store

    chosen = sampled_articles(int(articles))
    asked = list(product(chosen, ("human", "gpt4"), REWRITES))
    messages = [_chat(REWRITES[kind].format(text=chosen[i][source])) for i, source, kind in asked]
    writer = judge if judge.weights.name == REWRITER else load_judge(REWRITER)
    written = writer.generate(
        messages, max_new_tokens=160, temperature=TEMPERATURE, store=Store(store_folder(STUDY)), progress=True
    )
    for (i, source, kind), text in zip(asked, written["text"], strict=True):
        chosen[i][f"{kind} {source}"] = text.strip()
    table, made = ask(judge, prompts(chosen), NAMES, study=STUDY, command=command)
    table["verdict"] = verdicts(table, NAMES, least=0.5)
    return write_record(table, PAIRWISE, **made)


def length_filtered(path: str, *, text: str, newlines: bool = True, **given: Any) -> pd.DataFrame:
    """Rows of a test set whose human summary (column `text`) has 95 to 105 words; the network is used unless cached.

    The paper keeps 286 of ("abisee/cnn_dailymail", name="3.0.0", text="highlights") and 276 of ("d0rj/wikisum",
    text="summary"). `given` goes to datasets.load_dataset; `newlines` False splits words at spaces alone.
    """
    from datasets import load_dataset

    table = load_dataset(path, split="test", **given).to_pandas()
    words = table[text].str.split(None if newlines else " ").str.len()
    return table[words.between(95, 105)].reset_index(drop=True)


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
