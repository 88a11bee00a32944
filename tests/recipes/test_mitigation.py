"""Votes and verdicts mean what we say; a record keeps texts apart from positions, and remedies behind the answers."""

import json

import numpy as np
import pytest

from reprolib.evidence import PAIRWISE, public, recipe
from reprolib.evidence.recorded import read_record, records
from reprolib.metrics.leakage import error_bias

study = recipe("mitigation")


def committed():
    return public.result("mitigation_released").values


@pytest.fixture
def released_file(tmp_path):
    votes = [(1, 1, 2), (2, 2, 2), (0, 0, 1), (1, 2, 0)]
    rows = [
        {"idx": 10 + k, "cmp_key": "x-7b_y-7b", "instruction": "Count.", "input": "" if k else "to three",
         "response1": True, "response2": "one two", **{f"annotator{j}": v for j, v in enumerate(vote, 1)}}
        for k, vote in enumerate(votes)
    ]  # fmt: skip
    path = tmp_path / "people.json"
    path.write_text(json.dumps(rows))
    return path


def test_people_prefer_what_two_of_three_prefer(released_file):
    pairs = study.people(released_file)
    assert pairs["human"].tolist() == ["A", "B", "tie", "split"]
    assert pairs[["votes_a", "votes_b"]].to_numpy().tolist() == [[2, 1], [0, 3], [1, 0], [1, 1]]
    assert pairs["cluster_id"].tolist() == ["q000", "q001", "q001", "q001"]
    assert (pairs.text_a[0], pairs.words_a[0], pairs.words_b[0], pairs.author_b[0]) == ("True", 1, 2, "y-7b")


def test_both_orders_of_a_pair_and_every_remedy_behind_the_answers(released_file):
    asked = study.prompts(study.people(released_file).head(1))
    assert asked[["order", "condition"]].to_numpy().tolist() == [[o, e] for o in (0, 1) for e in study.ENDINGS]
    endings = study.wording()["endings"]
    for order, condition, (message,) in asked[["order", "condition", "prompt"]].itertuples(index=False):
        begin, _, end = message["content"].rpartition("\n\n")
        assert end == endings[condition]
        assert begin.endswith(
            "Answer 1:\none two\n\nAnswer 2:\nTrue" if order else "Answer 1:\nTrue\n\nAnswer 2:\none two"
        )


def test_committed_codes_are_whole():
    values = committed()
    panda = values["pandalm"]
    assert {len(codes) for codes in panda["verdicts"].values()} == {999}
    assert len(set(panda["question"])) == 170
    assert {part: len(block["pairs"]["human"]) for part, block in values["llmbar"].items()} == {
        "Natural": 100, "Neighbor": 134, "GPTInst": 92, "GPTOut": 47, "Manual": 46,
    }  # fmt: skip
    for block in values["llmbar"].values():
        for judge in study.LLMBAR_JUDGES:
            games = block[judge].split()
            assert len(games) == len(block["pairs"]["human"])
            assert {len(game) for game in games} == {2}


def test_a_llmbar_verdict_names_the_text_in_both_orders():
    """Were it the place, a judge that is right nine times in ten would be right in half of its swapped games."""
    block = committed()["llmbar"]["Natural"]
    right = np.array([[said == human for said in game] for game, human in
                      zip(block["gpt4"].split(), block["pairs"]["human"], strict=True)])  # fmt: skip
    assert (right.mean(axis=0) > 0.9).all()


def test_agreement_with_the_data_set_s_own_paper():
    """PandaLM's read-me prints Cohen's kappa between its annotators: 0.85, 0.88 and 0.86."""
    from sklearn.metrics import cohen_kappa_score

    said = [list(committed()["pandalm"]["verdicts"][f"person {k}"]) for k in (1, 2, 3)]
    kappas = [cohen_kappa_score(said[i], said[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert kappas == pytest.approx([0.85, 0.88, 0.86], abs=0.03)


@pytest.mark.parametrize("name", [name for of, name in records() if of == study.STUDY])
def test_records_hold_both_orders_of_decided_pairs_and_no_text(name):
    table, about = read_record(study.STUDY, name, PAIRWISE)
    judge, _, stage = name.rpartition("_")
    assert (table["judge"] == judge).all()
    assert stage in about.command
    assert set(table["condition"]) == (set(study.ENDINGS) if stage == "base" else {stage})
    assert table["human"].isin(["A", "B"]).all()
    assert (table.groupby(["pair_id", "condition"]).size() == 2).all()
    assert table.select_dtypes("str").map(lambda value: len(str(value))).max().max() < 40
    odds = (table["logp_1"] - table["logp_2"]) * (1 - 2 * table["order"])
    said = table["verdict"].isin(["A", "B"])
    assert ((odds > 0) == (table["verdict"] == "A"))[said].all()


@pytest.mark.parametrize(
    ("stage", "conditions"), [("base", list(study.ENDINGS)), ("reasoned", ["reasoned"]), ("rewritten", ["rewritten"])]
)
def test_a_toy_judge_makes_a_record_of_every_stage(project, make_judge, released_file, monkeypatch, stage, conditions):
    monkeypatch.setattr(study, "sampled_pairs", lambda n: study.people(released_file).head(n))
    monkeypatch.setattr(study, "LIMITS", {"reasoned": 6, "rewritten": 6})  # the toy's context is short
    judge = make_judge()
    kept = study.record(judge, command="c", stage=stage, pairs=2)
    assert kept.manifest.judge == f"{judge.weights.name}_{stage}"
    assert sorted(set(kept.table["condition"])) == sorted(conditions)
    assert len(kept.table) == 2 * 2 * len(conditions)
    by_text = (kept.table["logp_1"] - kept.table["logp_2"]) * (1 - 2 * kept.table["order"])
    unread = kept.table["verdict"] == "unparsed"
    assert ((by_text > 0) == (kept.table["verdict"] == "A"))[~unread].all()
    again = study.record(judge, command="c", stage=stage, pairs=2)
    assert again.manifest.timed == 0


@pytest.mark.usefixtures("mirror")
def test_samples_are_of_decided_pairs_and_nested():
    small, large = study.sampled_pairs(20), study.sampled_pairs(60)
    assert small["pair_id"].tolist() == large["pair_id"].tolist()[:20]
    assert large["human"].isin(["A", "B"]).all()


def test_the_chapter_s_control_a_judge_unrelated_to_llama_errs_towards_it_more_than_its_relative():
    """Computed here by counting, to guard orientation: text A or B is LLaMA's."""
    panda = committed()["pandalm"]
    of = panda["models"].index("llama-7b")
    people = ["".join(v) for v in zip(*(panda["verdicts"][f"person {k}"] for k in (1, 2, 3)), strict=True)]
    found = {}
    for judge in ("gpt35", "pandalm"):
        wrong, total = {"llama": 0, "other": 0}, {"llama": 0, "other": 0}
        for a, b, votes, said in zip(
            panda["author_a"], panda["author_b"], people, panda["verdicts"][judge], strict=True
        ):
            better = next((x for x in "AB" if votes.count(x) >= 2), "")
            if of not in (a, b) or not better or said not in "AB":
                continue
            own = "A" if a == of else "B"
            side = "llama" if better == own else "other"
            total[side] += 1
            wrong[side] += said != better
        sums = [wrong["other"], total["other"], wrong["llama"], total["llama"]]
        found[judge] = error_bias(sums)
    assert found["gpt35"] == pytest.approx(20.6, abs=0.1)
    assert found["pandalm"] == pytest.approx(2.7, abs=0.1)
