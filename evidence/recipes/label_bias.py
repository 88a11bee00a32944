"""Records of label bias: judges choose sets of constraints, then rate sets, blind and under a claimed source.

After Chae et al., arXiv 2608.18091, with constraints, prompts and models of our own. Stages, each a record: `select`
(every judge first), `blind` (every judge rates every judge's sets), `label` (matched sets, seven arms), `json` (the
paper's form of answer, and how often it fails).
"""

from __future__ import annotations

import json
import time
import tomllib
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reprolib.errors import pick
from reprolib.evidence import DIRECT
from reprolib.evidence.recorded import Record, store_folder, write_record
from reprolib.project import evidence_dir
from reprolib.studies import labels

if TYPE_CHECKING:
    from reprolib.inference.judge import Judge

ANSWERS = ("Yes", "No")
SEED = 20260818
TEMPERATURE = 0.7  # of the list and of JSON; the paper's is not known
DECISIVENESS = 0.5  # of draws by odds: a constraint one standard deviation better is exp(2) times as likely
DIGITS = tuple("0123456789")


def wording() -> dict[str, Any]:
    """The project's prompts: `select`, `pointwise`, `judge`, their JSON forms, `labels` and `dimensions`."""
    return tomllib.loads((evidence_dir() / "prompts" / "label_bias.toml").read_text())


def shuffled_pool(run: int) -> list[int]:
    """Ids of all constraints in the order in which selection run `run` lists them, under the numbers 1, 2, ...

    Numbers are given anew in each run, so that liking a number, or a place, is not liking a constraint.
    """
    return np.random.default_rng([SEED, run]).permutation(labels.pool().index).tolist()


def select_prompts(runs: int, *, form: str = "select") -> list[Any]:
    """The chat prompt of each selection run; `form`: `select`, or `select_json`."""
    text = labels.pool()["text"]
    lists = ["\n".join(f"{n:03} {text[i]}" for n, i in enumerate(shuffled_pool(run), 1)) for run in range(runs)]
    form = wording()[form].strip()
    return [_chat(form.format(pool=len(text), size=labels.SIZE, list=shown)) for shown in lists]


def record(judge: Judge, *, command: str, stage: str = "select", size: int | str = 0) -> Record:
    """One stage of a judge; `size`, if given: runs of `select` and of `json`, pairs of sets of `label`."""
    stages = {"select": (_select, 30), "blind": (_blind, 0), "label": (_label, 20), "json": (_json, 4)}
    ask, usual = pick("stage", stage, stages)
    size = int(size) or usual
    started, name = time.monotonic(), judge.weights.name
    table, run = ask(judge, size)
    table = table.assign(study=labels.STUDY, judge=name, prompt_digest=table["prompt_digest"].str[:16])
    made = judge.made(run, started=started, command=command)
    return write_record(table, DIRECT, study=labels.STUDY, judge=f"{name}_{stage}", **made)


def _select(judge: Judge, runs: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows: a chosen constraint (`value`: its id; `repetition`: its rank), and the log-odds of taking each one alone.

    A set of the arm "pointwise" is a draw without replacement in proportion to exp(z / `DECISIVENESS`), where z are the
    judge's log-odds, standardised: judges differ in what they take, and are made equal in how surely.
    """
    name, pool, common = judge.weights.name, labels.pool(), _common()
    numbers = [f"{n:03}" for n in pool.index]
    how: dict[str, Any] = {"temperature": TEMPERATURE, "max_new_tokens": 8 * labels.SIZE, **common}
    lists = judge.generate(select_prompts(runs), options=numbers, count=labels.SIZE, **how)
    places = np.array([text.split(",") for text in lists["text"]]).astype(int)
    chosen = [[shuffled_pool(run)[n - 1] for n in row] for run, row in enumerate(places)]
    listed = _sets(name, "list", chosen, lists["prompt_digest"].tolist()).assign(place=places.ravel())

    form, orders = wording()["pointwise"].strip(), (ANSWERS, ANSWERS[::-1])
    asked = [_chat(form.format(text=text, first=a, second=b)) for text in pool["text"] for a, b in orders]
    scores = judge.label_logprobs(asked, ANSWERS, min_mass=0, **common)
    by_order = (scores["logp_Yes"] - scores["logp_No"]).to_numpy().reshape(-1, 2)
    odds, mass = by_order.mean(axis=1), scores["in_label_mass"].to_numpy().reshape(-1, 2).mean(axis=1)
    fixed = {"item_id": pool.index.astype(str), "author": "", "arm": "log_odds", "repetition": 0, "value": odds}
    fixed |= {"order_effect": by_order[:, 0] - by_order[:, 1], "mass": mass}
    taken = pd.DataFrame(fixed).assign(
        cluster_id=pool.index.astype(str), prompt_digest=scores["prompt_digest"][::2].tolist()
    )

    noise = np.stack([np.random.default_rng([SEED, 1, run]).gumbel(size=len(pool)) for run in range(runs)])
    best = np.argsort(-((odds - odds.mean()) / odds.std() / DECISIVENESS + noise), axis=1)[:, : labels.SIZE]
    drawn = _sets(name, "pointwise", pool.index.to_numpy()[best].tolist(), [""] * runs)
    table = pd.concat([listed, taken, drawn], ignore_index=True)
    counts = {"rows_computed": sum(done.attrs["run"]["rows_computed"] for done in (lists, scores))}
    return table.assign(condition="select", scale_low=1, scale_high=len(pool)), scores.attrs["run"] | counts


def _blind(judge: Judge, _: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Every recorded set, both ways of choosing, on four dimensions, without a word about its source."""
    sets = labels.sets()
    return _rate(judge, sets.assign(label=""))


def _label(judge: Judge, pairs: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """As many own sets, and others' of like quality (`matched`), drawn by odds, each under every label."""
    name, sets = judge.weights.name, labels.sets().set_index("item_id", drop=False)
    chosen = matched(labels.blind("pointwise"), name, pairs=pairs)
    shown = pd.DataFrame({"label": list(wording()["labels"])})
    return _rate(judge, sets.loc[chosen[["own", "other"]].to_numpy().ravel()].merge(shown, how="cross"))


def _json(judge: Judge, runs: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """How a judge fares with free JSON: `runs` choices, and three blind ratings of as many sets of each model.

    Rows: a choice (`value`: 1 if it is sound), or a rating on a dimension, NaN where there is none; `failure` says why.
    """
    name, rows, sets = judge.weights.name, list[dict[str, Any]](), labels.sets("list").groupby("author").head(runs)
    how: dict[str, Any] = {"max_new_tokens": 300, "temperature": TEMPERATURE, **_common()}
    choices = judge.generate(select_prompts(runs, form="select_json"), **how)
    for run, (text, digest) in enumerate(choices[["text", "prompt_digest"]].to_numpy()):
        failure = read_choice(text)[1]
        item = {"item_id": f"{name}:json:{run:02}", "author": name, "condition": "select", "repetition": 0}
        rows.append(item | {"value": float(not failure), "failure": failure, "prompt_digest": digest})
    asked = [rate_prompt(item, ids, "", "", form="judge_json") for item, ids in sets[["item_id", "ids"]].to_numpy()]
    for repetition in range(3):
        replies = judge.generate(asked, seed=repetition, **how)
        for (item, author), text, digest in zip(
            sets[["item_id", "author"]].to_numpy(), replies["text"], replies["prompt_digest"], strict=True
        ):
            ratings, failure = read_ratings(text)
            fixed = {"item_id": item, "author": author, "repetition": repetition, "prompt_digest": digest}
            rows += [
                {**fixed, "condition": c, "value": ratings.get(c, np.nan), "failure": "" if c in ratings else failure}
                for c in labels.DIMENSIONS
            ]
    table = pd.DataFrame(rows).assign(arm="json", scale_low=1, scale_high=7)
    return table.assign(cluster_id=table["item_id"]), replies.attrs["run"]


def _rate(judge: Judge, sets: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows: a set, label and dimension (`condition`), with the logits of the ten digits and the expected score."""
    asked = sets.merge(pd.DataFrame({"condition": list(wording()["dimensions"])}), how="cross")
    prompts = [rate_prompt(*row) for row in asked[["item_id", "ids", "label", "condition"]].to_numpy()]
    scores = judge.label_logprobs(prompts, DIGITS, min_mass=0, items=asked["item_id"].tolist(), **_common())
    logits = scores[[f"logit_{digit}" for digit in DIGITS]].astype("float32")
    table = pd.concat([asked.drop(columns=["ids", "arm"]).rename(columns={"label": "arm"}), logits], axis=1)
    kept = {key: scores[key] for key in ("logsumexp", "n_tokens", "prompt_digest")}
    value = labels.expected_score(logits.to_numpy())
    table = table.assign(cluster_id=table["item_id"], repetition=0, scale_low=1, scale_high=7, value=value, **kept)
    return table, scores.attrs["run"]


def rate_prompt(item: str, ids: list[int], label: str, dimension: str, *, form: str = "judge") -> Any:
    """The chat prompt for a set; the order of its constraints is drawn with the set's name as the seed."""
    words = wording()
    order = np.random.default_rng([SEED, *item.encode()]).permutation(ids)
    shown = "\n".join(f"- {labels.pool()['text'][i]}" for i in order)
    said = f"{words['labels'][label]} " if label else ""
    about = words["dimensions"]
    rubric = "\n".join(f"{n}: {a['meaning']} 1 means {a['worst']}, 7 means {a['best']}." for n, a in about.items())
    fill = about.get(dimension, {}) | {
        "dimension": dimension,
        "rubric": rubric,
        "keys": ", ".join(f'"{n}"' for n in about),
    }
    return _chat(words[form].strip().format(size=len(ids), list=shown, label=said, **fill))


def matched(ratings: pd.DataFrame, judge: str, *, pairs: int = 20, caliper: float = 0.2) -> pd.DataFrame:
    """Own sets of a judge, each beside another model's of like quality: columns own, other, gap, at most `pairs` rows.

    Quality is the mean, over the judges other than this one and the set's author, of their blind ratings, each judge's
    standardised: the judge's own ratings would bring regression to the mean. Nearest first, each set once, gaps within
    `caliper` standard deviations of quality.
    """
    spread = ratings.groupby("judge")["value"]
    scored = ratings.assign(value=(ratings["value"] - spread.transform("mean")) / spread.transform("std"))
    outside = scored[(scored["judge"] != judge) & (scored["judge"] != scored["author"])]
    quality = outside.groupby(["item", "author"])["value"].mean().reset_index()
    own, other = (
        quality[side].reset_index(drop=True) for side in (quality["author"] == judge, quality["author"] != judge)
    )
    gaps = pd.DataFrame(
        np.abs(np.subtract.outer(own["value"].to_numpy(), other["value"].to_numpy())), own["item"], other["item"]
    )
    near = gaps.stack().sort_values(kind="stable") / quality["value"].std()
    found = list[tuple[str, str, float]]()
    for (mine, theirs), gap in near[near <= caliper].items():
        if len(found) < pairs and not any(mine == a or theirs == b for a, b, _ in found):
            found.append((mine, theirs, gap))
    return pd.DataFrame(found, columns=["own", "other", "gap"])


def _read_json(text: str) -> Any:
    """The first JSON value in a reply that is an object, or None."""
    try:
        return json.JSONDecoder().raw_decode(text, text.index("{"))[0]
    except ValueError:
        return None


def read_ratings(text: str) -> tuple[dict[str, float], str]:
    """The four ratings that a reply gives as JSON, and why others are missing: they are counted, never guessed.

    >>> read_ratings('{"originality": 5, "dimensionality": 9, "coherence": "high"}')
    ({'originality': 5.0}, 'off the scale: dimensionality; no whole number: coherence; missing: tellability')
    """
    if (reply := _read_json(text)) is None:
        return {}, "no JSON"
    found, why = dict[str, float](), list[str]()
    for name in labels.DIMENSIONS:
        given = reply.get(name)
        if name in reply and type(given) is int and 1 <= given <= 7:
            found[name] = float(given)
        else:
            kind = "missing" if name not in reply else "off the scale" if type(given) is int else "no whole number"
            why.append(f"{kind}: {name}")
    return found, "; ".join(why)


def read_choice(text: str, size: int = labels.SIZE) -> tuple[list[int], str]:
    """The numbers of the constraints that a reply chooses as JSON, and what is wrong with them, or an empty string.

    >>> read_choice('{"chosen": [3, 3, 201]}', size=3)
    ([3, 3, 201], 'a number twice; a number that is none of the list')
    """
    reply = _read_json(text)
    chosen = reply.get("chosen") if reply else None
    if not isinstance(chosen, list) or not all(type(number) is int for number in chosen):
        return [], "no JSON list of numbers"
    wrong = {
        f"{len(chosen)} numbers, not {size}": len(chosen) != size,
        "a number twice": len({*chosen}) < len(chosen),
        "a number that is none of the list": not {*chosen} <= {*labels.pool().index},
    }
    return chosen, "; ".join(text for text, holds in wrong.items() if holds)


def _sets(judge: str, arm: str, chosen: list[list[int]], digests: list[str]) -> pd.DataFrame:
    rows = [
        {"item_id": f"{judge}:{arm}:{run:02}", "cluster_id": f"{run:02}", "author": judge, "arm": arm,
         "repetition": rank, "value": float(one), "prompt_digest": digest}
        for run, (ids, digest) in enumerate(zip(chosen, digests, strict=True))
        for rank, one in enumerate(ids)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _common() -> dict[str, Any]:
    from reprolib.inference.store import Store

    return {"store": Store(store_folder(labels.STUDY)), "progress": True}


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
