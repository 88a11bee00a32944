"""The spot check agrees with the record, and notices a record that the model did not make."""

from __future__ import annotations

import pytest

from reprolib.errors import EvidenceError
from reprolib.evidence import PAIRWISE, recipe
from reprolib.evidence.recorded import read_record
from reprolib.inference import load_judge, weights

evidence_check = recipe("evidence_check")
SMOLLM2 = "smollm2-135m"


def test_each_question_is_asked_in_both_orders_with_the_answers_swapped() -> None:
    asked = evidence_check.prompts()
    assert len(asked) == 128
    assert asked.groupby("pair_id").order.agg(list).tolist() == [[0, 1]] * 64
    for row in asked.itertuples():
        text = row.prompt[0]["content"]
        assert (text.index(row.text_a) > text.index(row.text_b)) == row.order


def test_recorded_verdicts_follow_from_the_recorded_log_probabilities() -> None:
    table = read_record(evidence_check.STUDY, SMOLLM2, PAIRWISE).table
    for row in table.itertuples():
        shown_first = "A" if row.order == 0 else "B"
        other = {"A": "B", "B": "A"}[shown_first]
        assert row.verdict == (shown_first if row.logp_1 > row.logp_2 else other)


@pytest.mark.slow
def test_smollm2_gives_the_recorded_numbers_again_and_a_changed_record_is_noticed() -> None:
    if not weights.at_hand(SMOLLM2):
        pytest.skip(f"weights of {SMOLLM2} are not at hand")
    judge = load_judge(SMOLLM2)
    assert evidence_check.recheck(judge, k=8, seed=3) < 1e-3
    record = read_record(evidence_check.STUDY, SMOLLM2, PAIRWISE)
    changed = record._replace(table=record.table.assign(logp_1=record.table["logp_1"] + 0.01))
    assert evidence_check.recheck(judge, kept=changed) > 0.009
    mixed_up = record.table.assign(prompt_digest=record.table["prompt_digest"].tolist()[::-1])
    with pytest.raises(EvidenceError, match="a prompt is not the recorded one"):
        evidence_check.recheck(judge, kept=record._replace(table=mixed_up))
