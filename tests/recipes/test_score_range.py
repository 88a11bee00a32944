"""The released development set found again, prompts as they are meant, and what a record holds."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pandas as pd
import pytest

from reprolib.errors import EvidenceError, ParameterError
from reprolib.evidence import download, recipe
from reprolib.studies import score_range

summeval = recipe("score_range")


@pytest.mark.usefixtures("mirror")
def test_the_first_ten_of_the_shuffle_are_the_released_development_set() -> None:
    released = pd.DataFrame(json.loads(download.fetch(["summeval_dev"])["summeval_dev"].read_text()))
    asked = summeval.prompts(aspect="coherence", scale="1-5", articles=10)
    assert len(released) == len(asked) == 160
    ours = set(zip(asked.article, asked.summary, asked.author, asked.coherence, asked.relevance, strict=True))
    theirs = {(r.source, r.system_output, r.system_id, r.scores["coherence"], r.scores["relevance"])
              for r in released.itertuples()}  # fmt: skip
    assert ours == theirs


@pytest.mark.usefixtures("mirror")
def test_the_range_stands_before_the_article_and_summaries_share_all_up_to_theirs() -> None:
    asked = summeval.prompts(aspect="relevance", scale="3-7", articles=2)
    for _, part in asked.groupby("cluster_id"):
        texts = [prompt[0]["content"] for prompt in part.prompt]
        begin = [text.index(summary) for text, summary in zip(texts, part.summary, strict=True)]
        assert len({text[:at] for text, at in zip(texts, begin, strict=True)}) == 1
        assert texts[0].index("from 3 to 7") < texts[0].index(part.article.iloc[0])


@pytest.mark.usefixtures("mirror")
def test_the_papers_own_prompt_is_filled_completely() -> None:
    (text,) = summeval.prompts(aspect="consistency", scale="2-6", articles=1, prompt_set="original").prompt[0]
    assert "(2-6)" in text["content"]
    assert not any(mark in text["content"] for mark in "{}")


def test_a_pickle_that_names_a_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(Path("x")))
    with (tmp_path / "bad.pkl").open("rb") as file, pytest.raises(EvidenceError, match="asks for pathlib"):
        summeval._DataOnly(file).load()


@pytest.mark.usefixtures("mirror")
def test_an_unknown_range_is_refused_with_those_there_are() -> None:
    with pytest.raises(ParameterError, match="allowed: 0-4, 1-5, 2-6, 3-7"):
        summeval.prompts(aspect="coherence", scale="1-7")


@pytest.mark.slow
@pytest.mark.usefixtures("mirror")
def test_a_record_goes_on_where_it_stopped_and_comes_back_as_arrays(project, make_judge, make_model) -> None:  # type: ignore[no-untyped-def]
    judge = make_judge(make_model(max_position_embeddings=8192))
    for scale in score_range.RANGES:
        made = summeval.record(judge, command="c", scale=scale, articles="1")
        assert (made.manifest.rows, made.manifest.timed) == (16, 16)
    again = summeval.record(judge, command="c", scale="2-6", articles="1")
    assert again.manifest.timed == 0
    found = score_range.load("toy")
    assert found.logits.shape == found.seen.shape == (4, 1, 16, 10)
    assert found.human.tolist() == [score_range.items().query("cluster_id == 42").coherence.tolist()]
    asked = summeval.prompts(aspect="coherence", scale="2-6", articles=1)
    alone = judge.label_logprobs([asked.prompt[5]], score_range.DIGITS, min_mass=0)
    assert found.logits[2, 0, 5] == pytest.approx([alone[f"logit_{d}"][0] for d in score_range.DIGITS], abs=1e-5)
    text = asked.prompt[5][0]["content"]
    assert found.seen[2, 0, 5].tolist() == [d in text for d in score_range.DIGITS]
    assert (again.table.value == 2 + found.levels()[2].argmax(-1).ravel()).all()
    assert "toy" in score_range.recorded_judges()
