from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from reprolib.evidence import recipe
from reprolib.metrics.leakage import leakage_log_odds, pls_of_shares
from reprolib.studies.leakage import lab_table

simulations = recipe("simulations")
GENERATORS, Plant, margins = simulations.GENERATORS, simulations.Plant, simulations.margins
measure, planted_log_odds, verdict_counts = (
    simulations.measure,
    simulations.planted_log_odds,
    simulations.verdict_counts,
)
PLANT = Plant(questions=20_000, training_texts=100_000)


def pairwise_table(plant, *, seed):
    """The games as a lab run would store them: schema `tables.PAIRWISE` with logp_A and logp_B."""
    games = margins(plant, seed=seed)
    judge, question, order = (axis.ravel() for axis in np.indices(games.shape))
    margin = games.ravel()
    verdict = np.select([margin > plant.tie_band, margin < -plant.tie_band], ["A", "B"], "tie")
    return pd.DataFrame({
        "study": "leakage_simulation", "pair_id": question, "cluster_id": question,
        "judge": np.array(list(GENERATORS))[judge], "condition": "simulated", "arm": "none", "repetition": 0,
        "order": order, "author_a": "gen_a", "author_b": "gen_b", "verdict": verdict, "n_tokens": 0,
        "prompt_digest": "simulated", "logp_A": -np.logaddexp(0, -margin), "logp_B": -np.logaddexp(0, margin),
    })  # fmt: skip


def score(plant, seed=1):
    return 100 * float(pls_of_shares(verdict_counts(plant, margins(plant, seed=seed)).mean(axis=0)))


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("relation", ["same", "inherited", "family"])
@pytest.mark.parametrize(("mixing", "gap"), [(1.0, 0.0), (0.5, 0.8)])
def test_log_odds_recover_what_was_planted_whatever_the_quality_and_position_bias(weight, relation, mixing, gap):
    plant = replace(PLANT, weight=weight, relation=relation, mixing=mixing, quality_gap=gap)
    table = pairwise_table(plant, seed=3).sort_values(["judge", "pair_id", "order"])
    logp = table[["logp_A", "logp_B"]].to_numpy().reshape(2, plant.questions, 2, 2)
    margin = (logp[..., 0] - logp[..., 1]).mean(axis=(-1, -2))
    assert float(leakage_log_odds(*margin)) == pytest.approx(planted_log_odds(plant), abs=0.03)


def test_no_weight_no_leakage_and_more_weight_more_leakage():
    scores = [score(replace(PLANT, weight=w)) for w in (0.0, 0.25, 0.5, 1.0)]
    assert scores[0] == pytest.approx(0, abs=1.5)
    assert scores == sorted(scores)
    assert scores[-1] > 20


def test_leakage_grows_about_linearly_with_the_share_of_the_teachers_texts():
    mixing = np.array([0.0, 0.1, 0.3, 0.5, 0.7, 1.0])
    scores = [score(replace(PLANT, mixing=m)) for m in mixing]
    assert np.corrcoef(mixing, scores)[0, 1] ** 2 > 0.98
    assert scores[0] == pytest.approx(0, abs=1.5)


def test_stripping_the_habits_removes_leakage_inheritance_keeps_it_and_a_relative_shows_less():
    same, inherited, family = (score(replace(PLANT, relation=r)) for r in ("same", "inherited", "family"))
    assert score(replace(PLANT, stripped=1.0)) == pytest.approx(0, abs=1.5)
    assert inherited == pytest.approx(same, abs=2)
    assert 0.2 * same < family < 0.8 * same


def test_the_lab_pipeline_gives_the_score_of_the_simulation(tmp_path):
    plant = replace(PLANT, questions=2_000)
    pairwise_table(plant, seed=1).to_parquet(tmp_path / "pairwise.parquet")
    (row,) = lab_table(tmp_path, draws=200).itertuples()
    assert row.pls == pytest.approx(score(plant), abs=1e-9)
    assert row.n == 2_000


def test_measuring_a_lab_agrees_with_the_verdicts_and_the_plant():
    plant = replace(PLANT, questions=5_000)
    pls, nats = measure(plant, draws=200, seed=1)
    assert pls.value == pytest.approx(score(plant))
    assert nats.low < planted_log_odds(plant) < nats.high


def test_intervals_of_the_lab_pipeline_cover_the_true_score(tmp_path):
    truth, hits = score(replace(PLANT, questions=200_000)), 0
    for seed in range(40):
        pairwise_table(Plant(questions=300), seed=seed).to_parquet(tmp_path / "pairwise.parquet")
        (row,) = lab_table(tmp_path, draws=300, seed=seed).itertuples()
        hits += row.low <= truth <= row.high
    assert 33 <= hits <= 40  # 95 % of 40 is 38
