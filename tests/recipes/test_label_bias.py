"""Label bias from choice to effect with a toy judge: what is planted is found, what fails is counted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from reprolib.errors import ParameterError
from reprolib.evidence import recipe
from reprolib.inference.judge import Judge
from reprolib.studies import labels

label_bias = recipe("label_bias")


@pytest.fixture
def small_study(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with twelve constraints, of which a set holds four, and no record of label bias."""
    shutil.rmtree(project / "evidence" / "recorded" / "label_bias", ignore_errors=True)
    file = project / "evidence" / "prompts" / "constraints.csv"
    pd.read_csv(file).head(12).to_csv(file, index=False)
    monkeypatch.setattr(labels, "SIZE", 4)
    labels.pool.cache_clear()
    yield project
    labels.pool.cache_clear()


def test_a_study_from_choice_to_labels(
    small_study: Path, make_judge: Callable[..., Judge], make_model: Callable[..., Any]
) -> None:
    models = {}
    for name, spread in (("one", 0.3), ("two", 0.31), ("three", 0.32)):
        judge = make_judge(make_model(max_position_embeddings=8192, initializer_range=spread), digest=name)
        judge.weights = judge.weights._replace(name=name)
        models[name] = judge
        kept = label_bias.record(judge, command="reprolib record", stage="select", size=3)
        assert kept.manifest.judge == f"{name}_select"
    chosen = labels.sets()
    assert len(chosen) == 3 * 2 * 3
    assert all(len({*ids}) == 4 and {*ids} <= {*range(1, 13)} for ids in chosen["ids"])
    assert labels.membership(chosen).sum(axis=1).tolist() == [4] * 18
    rows = labels.read("one", "select").table
    listed = rows[rows["arm"] == "list"]  # a place in the shuffled list leads back to the constraint
    for row in listed.itertuples():
        assert label_bias.shuffled_pool(int(row.cluster_id))[int(row.place) - 1] == int(row.value)

    for judge in models.values():
        label_bias.record(judge, command="reprolib record", stage="blind")
    blind = labels.blind("pointwise")
    assert len(blind) == 3 * 9
    assert blind["value"].between(1, 7).all()
    by_hand = labels.read("two", "blind").table.query("item_id == 'one:pointwise:00'")
    mean = blind.query("judge == 'two' and item == 'one:pointwise:00'")["value"].item()
    assert mean == pytest.approx(by_hand["value"].mean())
    assert set(by_hand["condition"]) == {*labels.DIMENSIONS}

    kept = label_bias.record(models["one"], command="reprolib record", stage="label", size=2)
    shown = labels.labelled()
    pairs = label_bias.matched(blind, "one", pairs=2)
    assert len(kept.table) == 2 * len(pairs) * len(label_bias.wording()["labels"]) * 4
    assert set(shown["arm"]) == {*label_bias.wording()["labels"]}
    assert shown.groupby("own")["item"].nunique().to_dict() == {True: len(pairs), False: len(pairs)}


def test_the_label_stands_behind_the_set_and_only_the_label_changes() -> None:
    chosen = [5, 9, 13]
    texts = {
        arm: label_bias.rate_prompt("x:list:00", chosen, arm, "coherence")[0]["content"] for arm in ("self", "none")
    }
    words = label_bias.wording()["labels"]
    assert texts["self"].replace(words["self"], words["none"]) == texts["none"]
    assert texts["self"].index(words["self"]) > max(texts["self"].index(labels.pool()["text"][i]) for i in chosen)
    blind = label_bias.rate_prompt("x:list:00", chosen, "", "coherence")[0]["content"]
    assert blind == texts["none"].replace(words["none"] + " ", "")
    assert len({len(sentence.split()) // 3 for sentence in words.values()}) <= 2  # labels are of like length


def test_free_json_is_read_and_what_fails_is_named() -> None:
    whole = json.dumps(dict.fromkeys(labels.DIMENSIONS, 4) | {"rationale": "It fits."})
    assert label_bias.read_ratings(f"```json\n{whole}\n```") == (dict.fromkeys(labels.DIMENSIONS, 4.0), "")
    assert label_bias.read_ratings("I would give it a 5.") == ({}, "no JSON")
    assert label_bias.read_ratings('{"originality": 5') == ({}, "no JSON")
    found, why = label_bias.read_ratings(whole.replace('"coherence": 4', '"coherence": 9'))
    assert "coherence" not in found
    assert why == "off the scale: coherence"
    assert (
        label_bias.read_ratings(whole.replace('"coherence": 4', '"coherence": true'))[1] == "no whole number: coherence"
    )
    numbers = list(range(1, 21))
    assert label_bias.read_choice(json.dumps({"chosen": numbers})) == (numbers, "")
    assert label_bias.read_choice(json.dumps({"chosen": [*numbers[:-1], 1]}))[1] == "a number twice"
    assert label_bias.read_choice(json.dumps({"chosen": [*numbers, 21]}))[1] == "21 numbers, not 20"
    assert label_bias.read_choice('{"chosen": ["1", "2"]}')[1] == "no JSON list of numbers"


def test_matching_uses_other_judges_only_and_keeps_to_the_caliper() -> None:
    rng = np.random.default_rng(3)
    names = ["a", "b", "c", "d"]
    items = [(author, f"{author}{k}", rng.normal()) for author in names for k in range(15)]
    rows = [(judge, author, item, 4 + q + 0.3 * rng.normal()) for author, item, q in items for judge in names]
    ratings = pd.DataFrame(rows, columns=["judge", "author", "item", "value"])
    pairs = label_bias.matched(ratings, "a", pairs=10)
    assert 0 < len(pairs) <= 10
    assert pairs["gap"].max() <= 0.2
    assert pairs["gap"].is_monotonic_increasing
    assert all(pairs[side].is_unique for side in ("own", "other"))
    assert pairs["own"].str.startswith("a").all()
    assert not pairs["other"].str.startswith("a").any()
    own_view = ratings.assign(value=ratings["value"].where(ratings["judge"] != "a", rng.normal(size=len(ratings))))
    pd.testing.assert_frame_equal(label_bias.matched(own_view, "a", pairs=10), pairs)  # its own scores have no say
    assert label_bias.matched(ratings, "a", caliper=0.0).empty


def test_a_digit_off_the_scale_does_not_touch_the_expected_score() -> None:
    logits = np.zeros(10)
    logits[9] = 5.0
    assert labels.expected_score(logits) == pytest.approx(4.0)
    logits[7] = 30.0
    assert labels.expected_score(logits) == pytest.approx(7.0, abs=1e-6)


def test_an_unknown_stage_names_those_there_are(make_judge: Callable[..., Judge]) -> None:
    with pytest.raises(ParameterError, match="no stage 'rate'"):
        label_bias.record(make_judge(), command="", stage="rate")
