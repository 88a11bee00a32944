"""SummEval as the dossier describes it, the released development set found again, and what a record holds."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reprolib.errors import EvidenceError, ParameterError
from reprolib.evidence import download
from reprolib.metrics.correlation import cross_table
from reprolib.studies import score_range

FILE_ORDER = ["M11", "M13", "M1", "M14", "M15", "M12", "M5", "M17", "M20", "M23", "M2", "M0", "M22", "M8", "M10", "M9"]
TEST = list(score_range.shuffled()[10:])


def human(aspect: str, articles: list[int]) -> np.ndarray:
    table = score_range.items().set_index("cluster_id")
    return np.stack([table.loc[article, aspect].to_numpy() for article in articles])


@pytest.mark.parametrize(
    ("aspect", "mean", "sd", "at_five", "counts"),
    [
        ("coherence", 3.413, 1.037, 0.069, [38, 326, 422, 579, 235]),
        ("consistency", 4.660, 0.917, 0.816, [35, 82, 37, 59, 1387]),
        ("relevance", 3.777, 0.797, 0.052, [11, 120, 362, 837, 270]),
    ],
)
def test_committed_ratings_have_the_known_moments(aspect, mean, sd, at_five, counts) -> None:  # type: ignore[no-untyped-def]
    values = score_range.items()[aspect]
    assert (values.mean(), values.std(ddof=0)) == pytest.approx((mean, sd), abs=6e-4)
    assert round((values == 5).mean(), 3) == at_five
    assert np.bincount(np.rint(values).astype(int), minlength=6)[1:].tolist() == counts


@pytest.mark.parametrize(
    ("aspect", "pooled", "kept", "within"), [("coherence", 0.966, 90, 0.943), ("consistency", 0.874, 80, 0.896)]
)
def test_a_judge_that_rounds_the_humans_reaches_the_known_ceiling(aspect, pooled, kept, within) -> None:  # type: ignore[no-untyped-def]
    scores = human(aspect, TEST)
    table = cross_table(np.rint(scores), scores)
    defined = table.within()[np.isfinite(table.within())]
    assert round(table.pooled(), 3) == pooled
    assert (len(defined), round(defined.mean(), 3)) == (kept, within)


def test_ids_are_in_file_order_and_digits_are_counted_in_the_text() -> None:
    table = score_range.items()
    assert table.groupby("cluster_id").author.agg(list).map(lambda systems: systems == FILE_ORDER).all()
    shares = {digit: round(table[f"seen_{digit}"].mean(), 2) for digit in "01234567"}
    assert shares == {"0": 0.78, "1": 0.80, "2": 0.72, "3": 0.55, "4": 0.46, "5": 0.49, "6": 0.43, "7": 0.40}


@pytest.mark.usefixtures("mirror")
def test_the_first_ten_of_the_shuffle_are_the_released_development_set() -> None:
    released = pd.DataFrame(json.loads(download.fetch(["summeval_dev"])["summeval_dev"].read_text()))
    asked = score_range.prompts(aspect="coherence", scale="1-5", articles=10)
    assert len(released) == len(asked) == 160
    ours = set(zip(asked.article, asked.summary, asked.author, asked.coherence, asked.relevance, strict=True))
    theirs = {(r.source, r.system_output, r.system_id, r.scores["coherence"], r.scores["relevance"])
              for r in released.itertuples()}  # fmt: skip
    assert ours == theirs


@pytest.mark.usefixtures("mirror")
def test_the_range_stands_before_the_article_and_summaries_share_all_up_to_theirs() -> None:
    asked = score_range.prompts(aspect="relevance", scale="3-7", articles=2)
    for _, part in asked.groupby("cluster_id"):
        texts = [prompt[0]["content"] for prompt in part.prompt]
        begin = [text.index(summary) for text, summary in zip(texts, part.summary, strict=True)]
        assert len({text[:at] for text, at in zip(texts, begin, strict=True)}) == 1
        assert texts[0].index("from 3 to 7") < texts[0].index(part.article.iloc[0])


@pytest.mark.usefixtures("mirror")
def test_the_papers_own_prompt_is_filled_completely() -> None:
    (text,) = score_range.prompts(aspect="consistency", scale="2-6", articles=1, prompt_set="original").prompt[0]
    assert "(2-6)" in text["content"]
    assert not any(mark in text["content"] for mark in "{}")


def test_a_pickle_that_names_a_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(Path("x")))
    with (tmp_path / "bad.pkl").open("rb") as file, pytest.raises(EvidenceError, match="asks for pathlib"):
        score_range._DataOnly(file).load()


@pytest.mark.usefixtures("mirror")
def test_an_unknown_range_is_refused_with_those_there_are() -> None:
    with pytest.raises(ParameterError, match="allowed: 0-4, 1-5, 2-6, 3-7"):
        score_range.prompts(aspect="coherence", scale="1-7")
