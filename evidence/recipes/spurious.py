"""Spurious features (Li et al., Section 5.7): two students' answers without format, wording or style, judged again."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reprolib.errors import pick
from reprolib.evidence import PAIRWISE, download
from reprolib.evidence.public import public_study
from reprolib.evidence.recorded import Record, ask, store_folder, verdicts, write_record
from reprolib.metrics.resampling import Array, Estimate, bootstrap_each, cluster_sums
from reprolib.metrics.style import predict_author, style_counts
from reprolib.project import evidence_dir

if TYPE_CHECKING:
    from reprolib.inference.judge import Judge

STUDY = "spurious"
ITEMS = Path("recorded", STUDY, "items.parquet")
SOURCE = "leakage_gemini_judgments"
CONDITIONS = ("none", "format", "wording", "style")
AUTHORS = ("Gemini-1.5", "LLaMA-3.3")  # teachers of text A and text B
LABELS = ("1", "2")
REWRITER = "qwen2.5-coder-0.5b"
SAMPLE = 60  # pairs that are rewritten: the most a record judges
DRAWS = 2_000
WORDS = (20, 150)  # of each answer in the sample: longer ones cost too much here, shorter ones have no style
SAMPLING = {"max_new_tokens": 240, "temperature": 0.3, "seed": 0}
_RULE = r"\s*(\|?[\s:|-]*(-{3,}|\|\s*:?-+:?\s*\|)[\s:|-]*|[*_=]{3,})\s*"  # a rule, or a table's
_LINE = r"#{1,6} |>+ ?|\s*[*+-] |\s*\d+[.)] "  # heading, quotation, bullet, number


def strip_format(text: str) -> str:
    """The words of a Markdown answer in one paragraph: no headings, bold, lists, tables, emoji or double spaces.

    Code between fences keeps its lines, which are its content, and loses the fences.

    >>> strip_format("## Two\\n\\n1. **One**.  It is.\\n| a | b |\\n|---|---|\\n```py\\nx = 1\\n```")
    'Two One. It is. a, b\\nx = 1'
    """
    parts = re.split(r"^```.*$\n?", text, flags=re.MULTILINE)
    plain = [part.strip("\n") if code % 2 else _prose(part) for code, part in enumerate(parts)]
    return "\n".join(part for part in plain if part)


def _prose(text: str) -> str:
    text = re.sub(r"(\*\*|__|`)(\S.*?)\1", r"\2", text)
    text = re.sub(r"(?<![\w*])\*(?=\S)([^*\n]+?)(?<=\S)\*(?![\w*])", r"\1", text)
    text = re.sub(r"[\u2600-\u27bf\ufe0f\U0001f000-\U0001faff]", "", text)
    lines = [line for line in text.splitlines() if not re.fullmatch(_RULE, line)]
    lines = [re.sub(r"\s*\|\s*", ", ", line.strip(" |")) if re.match(r"\s*\|", line) else line for line in lines]
    return " ".join(" ".join(re.sub(rf"^(?:{_LINE})+", "", line) for line in lines).split())


def substitute_words(text: str) -> str:
    """Words and phrases replaced by a plain one, from our table; format, spaces and code between fences stay.

    Many words become one, so habits are lost; a first capital is kept, articles are not adapted.

    >>> substitute_words("Furthermore, it's  **crucial** to utilize an approach.")
    'Also, it is  **important** to use an way.'
    """
    table = _substitutes()
    words = sorted(table, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w'-])(?:{'|'.join(map(re.escape, words))})(?![\w'-])", re.IGNORECASE)

    def plain(found: re.Match[str]) -> str:
        new = table[found[0].lower()]
        return new[0].upper() + new[1:] if found[0][0].isupper() else new

    parts = re.split(r"(^```[\s\S]*?(?:^```|\Z))", text, flags=re.MULTILINE)
    return "".join(part if code % 2 else pattern.sub(plain, part.replace("’", "'")) for code, part in enumerate(parts))


def rewrite(texts: list[str], *, judge: Judge | None = None) -> pd.DataFrame:
    """Each text in a plain voice, by `REWRITER`: columns of `Judge.generate`, of which `text` must not be committed."""
    from reprolib.inference.judge import load_judge
    from reprolib.inference.store import Store

    asked = [_chat(_prompts()["rewrite"].format(text=text)) for text in texts]
    writer: Any = judge or load_judge(REWRITER)
    return writer.generate(asked, store=Store(store_folder(STUDY)), progress=True, **SAMPLING)


@public_study("leakage_spurious", sources=[SOURCE], on_page=False)
def separability(paths: dict[str, Path]) -> dict[str, Any]:
    """How well 805 pairs of answers can be told apart before and after each rule, and how their habits differ then.

    `separability`: how often (%) a classifier names the student, trained on such texts of other questions; of the
    features "original classifier", on the untouched ones. `falls`: points below "none"; "over wording": format's fall
    less wording's. `habits`: mean count an answer of each student, and their difference. Questions are resampled.
    """
    pairs = released_pairs(paths[SOURCE])
    rules: dict[str, list[Callable[[str], str]]] = {"none": [], "format": [strip_format], "wording": [substitute_words]}
    rules["format and wording"] = [strip_format, substitute_words]
    texts = {name: [*pairs["a"], *pairs["b"]] for name in rules}
    for name, steps in rules.items():
        for step in steps:
            texts[name] = [step(text) for text in texts[name]]
    questions, authors = [*pairs["question"]] * 2, [name for name in AUTHORS for _ in range(len(pairs))]
    seen: dict[str, Callable[[list[str]], Any]] = {
        "words, marks and spaces": list,
        "words alone": lambda shown: [re.sub(r"[\W_]+", " ", text) for text in shown],
        "nine format counts": style_counts,
        "number of words alone": lambda shown: pd.DataFrame({"words": [len(text.split()) for text in shown]}),
    }
    right = [predict_author(see(shown), authors, questions) for see, shown in product(seen.values(), texts.values())]
    right += [predict_author(texts["none"], authors, questions, ablated=shown) for shown in texts.values()]
    asked = [*seen, "original classifier"]
    columns = product(asked, texts)
    sums = cluster_sums(np.column_stack([*right, np.ones(len(authors))]), questions)

    def shares(s: Array) -> Array:
        return 100 * s[..., :-1] / s[..., -1:]

    def falls(s: Array) -> Array:
        table = shares(s).reshape(*s.shape[:-1], len(asked), len(texts))
        lost = table[..., :1] - table[..., 1:]
        return np.concatenate([lost, lost[..., :1] - lost[..., 1:2]], axis=-1).reshape(*s.shape[:-1], -1)

    fell = product(asked, [*list(texts)[1:], "over wording"])
    habits = []
    for name, shown in texts.items():
        counts = style_counts(shown)
        a, b = counts[: len(pairs)].to_numpy(), counts[len(pairs) :].to_numpy()
        by_question = cluster_sums(np.column_stack([a - b, np.ones(len(pairs))]), pairs["question"])
        gaps = bootstrap_each(by_question, lambda s: s[..., :-1] / s[..., -1:], draws=DRAWS)
        rows = zip(counts, a.mean(axis=0), b.mean(axis=0), gaps, strict=True)
        habits += [{"condition": name, "habit": h, "gemini": x, "llama": y, **_parts(e)} for h, x, y, e in rows]
    return {
        "separability": _named(columns, bootstrap_each(sums, shares, draws=DRAWS)),
        "falls": _named(fell, bootstrap_each(sums, falls, draws=DRAWS)),
        "habits": habits,
        "words_changed": _changed(texts),
    }


def _named(names: Iterable[tuple[str, str]], found: list[Estimate]) -> list[dict[str, Any]]:
    return [{"feature": f, "condition": c, **_parts(e)} for (f, c), e in zip(names, found, strict=True)]


def _parts(e: Estimate) -> dict[str, Any]:
    return {k: getattr(e, k) for k in ("value", "low", "high", "n", "jitter")}


def _changed(texts: dict[str, list[str]]) -> float:
    """Words of the originals that the table of words replaces, in percent."""
    kept = sum(
        (Counter(old.split()) & Counter(new.split())).total()
        for old, new in zip(texts["none"], texts["wording"], strict=True)
    )
    return 100 * (1 - kept / sum(len(text.split()) for text in texts["none"]))


def released_pairs(path: Path | None = None) -> pd.DataFrame:
    """The 805 released pairs: pair_id, question, a (of Gemini-1.5's student), b (of LLaMA-3.3's), an inference."""
    items = pd.DataFrame(json.loads((path or download.fetch([SOURCE])[SOURCE]).read_text()))
    texts = items.rename(columns={"instruction": "question", "output_1": "a", "output_2": "b"})
    return texts[["question", "a", "b"]].assign(pair_id=[f"q{k:03}" for k in range(len(items))])


def sampled_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    """The `SAMPLE` first of a fixed random order, among pairs whose answers both have a length in `WORDS`."""
    fits = pd.concat([pairs[x].str.split().str.len().between(*WORDS) for x in "ab"], axis=1).all(axis=1)
    order = np.random.default_rng(20250206).permutation(pairs.index[fits])
    return pairs.loc[order[:SAMPLE]]


def ablated(pairs: pd.DataFrame, condition: str, *, judge: Judge | None = None) -> pd.DataFrame:
    """The pairs with a and b changed, and `condition`; `judge` is the rewriter, if it is loaded already."""
    texts = [*pairs["a"], *pairs["b"]]
    if condition == "style":
        texts = rewrite(texts, judge=judge)["text"].str.strip().tolist()
    elif condition != "none":
        texts = [{"format": strip_format, "wording": substitute_words}[condition](text) for text in texts]
    return pairs.assign(condition=condition, a=texts[: len(pairs)], b=texts[len(pairs) :])


def prompts(table: pd.DataFrame) -> pd.DataFrame:
    """Both orders of each row of `ablated`, neighbours sharing the question: columns of `pairwise`, and `prompt`."""
    rows = []
    for row, order in product(table.itertuples(), (0, 1)):
        first, second = (row.b, row.a) if order else (row.a, row.b)
        text = _prompts()["judge"].format(question=row.question, first=first, second=second)
        names = {
            "pair_id": row.pair_id,
            "cluster_id": row.pair_id,
            "condition": row.condition,
            "arm": "",
            "order": order,
        }
        rows.append(names | {"author_a": AUTHORS[0], "author_b": AUTHORS[1], "prompt": _chat(text)})
    return pd.DataFrame(rows)


def record(judge: Judge, *, command: str, pairs: int | str = 30, conditions: str = ",".join(CONDITIONS)) -> Record:
    """Judge the first `pairs` of the sample in both orders, without each feature: one record a condition.

    `conditions`: which, with commas. Beside the records `items.parquet` holds what is counted in the texts. The verdict
    is the likelier label, or "unparsed" where both labels together hold less than half of the probability.
    """
    released, known = released_pairs(), dict(zip(CONDITIONS, CONDITIONS, strict=True))
    sample = sampled_pairs(released)[: int(pairs)]
    for condition in conditions.split(","):
        writer = judge if judge.weights.name == REWRITER else None
        texts = ablated(sample, pick("condition", condition, known), judge=writer)
        _keep_numbers(released, texts)
        table, made = ask(judge, prompts(texts), LABELS, study=STUDY, command=command)
        table["verdict"] = verdicts(table, LABELS, least=0.5)
        made["judge"] = f"{judge.weights.name}_{condition}"
        kept = write_record(table, PAIRWISE, **made)
    return kept


def _keep_numbers(released: pd.DataFrame, texts: pd.DataFrame) -> None:
    """Keep numbers of the texts: words, habits, and whether a classifier of the original answers names the author."""
    shown = pd.concat([texts.combine_first(released)[x] for x in "ab"]).tolist()  # the index is the released order
    authors = [name for name in AUTHORS for _ in range(len(released))]
    questions = [*released["question"]] * 2
    named = predict_author([*released["a"], *released["b"]], authors, questions, ablated=shown)
    numbers = texts[["pair_id", "condition"]]
    for x, right in zip("ab", np.split(named, 2), strict=True):
        counts = style_counts(texts[x].tolist()).set_index(texts.index).assign(named=right[texts.index])
        numbers = numbers.join(counts.assign(words=texts[x].str.split().str.len()).add_suffix(f"_{x}"))
    path = evidence_dir() / ITEMS
    path.parent.mkdir(parents=True, exist_ok=True)
    old = [pd.read_parquet(path)] if path.is_file() else []
    table = pd.concat([*old, numbers]).drop_duplicates(["pair_id", "condition"], keep="last")
    table.sort_values(["condition", "pair_id"]).to_parquet(path, index=False)


@cache
def _prompts() -> dict[str, Any]:
    return tomllib.loads((evidence_dir() / "prompts" / "spurious.toml").read_text())


@cache
def _substitutes() -> dict[str, str]:
    return {word: plain for plain, words in _prompts()["words"].items() for word in words}


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
