"""Estimates of self-preference against statsmodels' formulas, identities of complete designs, and planted effects."""

import itertools
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import stats

from reprolib.errors import ParameterError
from reprolib.evidence import recipe
from reprolib.metrics.mixed import (
    cell_model,
    equivalent,
    fixed_effects,
    judge_contrasts,
    label_effects,
    mixed_model,
    naive_model,
    ordinal_model,
    permutation_p,
    raw_gaps,
)
from reprolib.metrics.resampling import Estimate

simulate = recipe("simulations").simulated_ratings

COMPLETE = simulate(models=5, sets=12, repetitions=2, beta=0.1, seed=1)


def error_of(estimate: Estimate, freedom: int) -> float:
    return (estimate.high - estimate.value) / stats.t.ppf(0.975, freedom)


def own(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(own=(table["judge"] == table["author"]).astype(float))


def without(table: pd.DataFrame, share: float, seed: int = 0) -> pd.DataFrame:
    return table[np.random.default_rng(seed).random(len(table)) > share]


def matrix(cells: np.ndarray) -> pd.DataFrame:
    """A table with one item an author, from judge x author scores."""
    judge, author = np.indices(cells.shape).reshape(2, -1)
    return pd.DataFrame({"judge": judge, "author": author, "item": author, "value": cells.ravel()})


def test_raw_gaps_are_differences_of_means():
    gaps = raw_gaps(COMPLETE)
    for judge, rows in COMPLETE.groupby("judge"):
        mine = rows["author"] == judge
        assert gaps[judge] == pytest.approx(rows["value"][mine].mean() - rows["value"][~mine].mean())


def test_in_a_complete_design_controls_change_nothing():
    found = [raw_gaps(COMPLETE).mean(), fixed_effects(COMPLETE), naive_model(COMPLETE).value]
    found += [cell_model(COMPLETE).value, judge_contrasts(COMPLETE).value]
    assert found == pytest.approx([found[0]] * 5, abs=1e-10)


def test_only_single_judges_move_by_the_quality_of_what_they_made():
    better = COMPLETE.assign(value=COMPLETE["value"] + 2 * (COMPLETE["author"] == "model 03"))
    moved = raw_gaps(better) - raw_gaps(COMPLETE)
    assert moved["model 03"] == pytest.approx(2)
    assert moved.drop("model 03").to_numpy() == pytest.approx(-2 / 4)
    assert fixed_effects(better) == pytest.approx(fixed_effects(COMPLETE), abs=1e-10)


@pytest.mark.parametrize("share", [0, 0.3])
def test_fixed_effects_and_naive_error_as_statsmodels_formula(share):
    table = own(without(COMPLETE, share))
    theirs = smf.ols("value ~ own + C(judge) + C(item)", table).fit()
    ours = naive_model(table)
    assert fixed_effects(table) == pytest.approx(theirs.params["own"], abs=1e-9)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.conf_int().loc["own"]), abs=1e-9)
    assert ours.n == len(table)


def test_naive_error_has_its_balanced_closed_form():
    table = own(COMPLETE)
    fit = smf.ols("value ~ own + C(judge) + C(item)", table).fit()
    closed = math.sqrt(fit.mse_resid * 25 / (len(table) * 4))
    assert error_of(naive_model(table), int(fit.df_resid)) == pytest.approx(closed)


@pytest.mark.parametrize(("models", "gone"), [(10, 0), (3, 0), (5, 2)])
def test_cell_model_as_statsmodels_formula(models, gone):
    table = own(simulate(models=models, sets=4, seed=3))
    cells = table.groupby(["judge", "author"], as_index=False)[["value", "own"]].mean().iloc[gone * 2 :: 1]
    theirs = smf.ols("value ~ own + C(judge) + C(author)", cells).fit()
    ours = cell_model(table.merge(cells[["judge", "author"]]))
    assert theirs.df_resid == (models - 1) ** 2 - 1 - 2 * gone
    assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.params["own"], *theirs.conf_int().loc["own"]))
    assert f"t({theirs.df_resid:.0f})" in ours.rule


def test_names_may_be_numbers():
    table = simulate(models=4, sets=6, affinity=0.4, author_sd=1, seed=2)
    numbered = table.assign(judge=table["judge"].str[-2:].astype(int), author=table["author"].str[-2:].astype(int))
    for model in (naive_model, cell_model, judge_contrasts, mixed_model):
        assert model(numbered).text(6) == model(table).text(6)


def test_two_models_have_an_estimate_and_no_interval():
    table = simulate(models=2, sets=6, beta=1, seed=1)
    for estimate in (cell_model(table), mixed_model(table)):
        assert estimate.value == pytest.approx(raw_gaps(table).mean())
        assert np.isnan([estimate.low, estimate.high]).all()
        assert not equivalent(estimate, 100)


@pytest.mark.parametrize("seed", [5, 22, 34])
def test_mixed_model_survives_variances_of_zero(seed):
    none = {"affinity": 0, "author_sd": 0, "set_sd": 0, "cell_sd": 0}
    for models in (2, 3, 4):
        table = simulate(models=models, sets=4, seed=seed, **none)
        assert mixed_model(table).value == pytest.approx(raw_gaps(table).mean(), abs=1e-9)


@pytest.mark.filterwarnings("ignore:The design matrix is rank-deficient")
def test_what_the_data_cannot_tell_is_nan():
    alone = COMPLETE[COMPLETE["judge"] == COMPLETE["author"]]  # nobody judges another's
    assert raw_gaps(alone).isna().all()
    assert math.isnan(cell_model(alone).value)
    assert math.isnan(fixed_effects(alone))
    strangers = COMPLETE[COMPLETE["judge"] != COMPLETE["author"]]
    assert raw_gaps(strangers).isna().all()
    assert math.isnan(fixed_effects(strangers))
    assert math.isnan(judge_contrasts(strangers).value)
    assert math.isnan(permutation_p(strangers))


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_permutation_p_as_all_matchings_by_hand(alternative):
    cells = np.random.default_rng(2).normal(size=(4, 4))
    centred = cells - cells.mean(axis=0) - cells.mean(axis=1)[:, None] + cells.mean()
    traces = np.array([sum(centred[i, j] for i, j in enumerate(way)) for way in itertools.permutations(range(4))])
    truth = np.trace(centred)
    as_far = {"two-sided": abs(traces) >= abs(truth), "greater": traces >= truth, "less": traces <= truth}[alternative]
    assert permutation_p(matrix(cells), alternative=alternative) == pytest.approx(as_far.mean())


def test_permutation_p_of_three_models_counts_in_sixths_and_is_never_less():
    found = {permutation_p(simulate(models=3, sets=4, seed=s)) * 6 for s in range(30)}
    assert all(x == pytest.approx(round(x)) for x in found)
    assert permutation_p(simulate(models=3, sets=4, beta=50, seed=0)) == pytest.approx(1 / 6)
    assert permutation_p(simulate(models=3, sets=4, beta=-50, seed=0)) == pytest.approx(1 / 6)


def test_many_models_are_matched_at_random_repeatably():
    table = simulate(models=8, sets=2, beta=0.15, seed=4)
    first, again, other = (permutation_p(table, draws=999, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first == pytest.approx(other, abs=0.06)
    assert permutation_p(simulate(models=8, sets=2, beta=9, seed=4), draws=999) == pytest.approx(1 / 1_000)


def test_an_unknown_alternative_is_refused():
    with pytest.raises(ParameterError, match="two-sided"):
        permutation_p(COMPLETE, alternative="two_sided")


def test_judge_contrasts_are_a_t_test_of_the_centred_diagonal_allowing_for_its_correlation():
    cells = np.random.default_rng(6).normal(size=(5, 5))
    centred = cells - cells.mean(axis=0) - cells.mean(axis=1)[:, None] + cells.mean()
    plain, ours = stats.ttest_1samp(np.diag(centred) * 5 / 4, 0), judge_contrasts(matrix(cells))
    assert ours.value == pytest.approx(np.trace(centred) / 4)
    assert ours.high - ours.low == pytest.approx(np.ptp(plain.confidence_interval()) * math.sqrt(4 / 3))
    assert ours.n == 5


@pytest.mark.parametrize("models", [3, 6])
def test_judge_contrasts_reject_one_null_in_twenty_even_of_few_models(models):
    tables = [matrix(cells) for cells in np.random.default_rng(7).normal(size=(200, models, models))]
    rejected = np.mean([not (x := judge_contrasts(table)).low < 0 < x.high for table in tables])
    assert 0.015 < rejected < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_affinity_fools_the_naive_model_and_not_the_cells():
    """Nothing is planted; ten models with an affinity of 0.15 gave 48 % and 5 % of 400 studies."""
    studies = [simulate(models=4, sets=30, repetitions=2, affinity=0.2, seed=s) for s in range(200)]
    rejected = {
        model: np.mean([not (x := model(study)).low < 0 < x.high for study in studies])
        for model in (naive_model, cell_model)
    }
    assert rejected[naive_model] > 0.3
    assert rejected[cell_model] < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    assert np.mean([permutation_p(study) <= 1 / 12 for study in studies]) < 1 / 12 + 3 * math.sqrt(1 / 12 / 200)


def test_without_affinity_or_judge_by_item_effects_rows_are_evidence():
    studies = [simulate(models=4, sets=10, affinity=0, cell_sd=0, seed=s) for s in range(100)]
    rejected = np.mean([not (x := naive_model(study)).low < 0 < x.high for study in studies])
    assert rejected < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 100)


def test_a_planted_preference_is_recovered():
    table = simulate(models=8, sets=20, beta=0.5, affinity=0.1, seed=5)
    for model in (cell_model, judge_contrasts):
        assert model(table).low < 0.5 < model(table).high
        assert model(table).low > 0.2
    assert permutation_p(table) < 0.01


def test_equivalence_needs_the_whole_interval():
    assert equivalent(Estimate(0.01, -0.05, 0.07, 9), 0.1)
    assert not equivalent(Estimate(0.01, -0.05, 0.12, 9), 0.1)
    assert not equivalent(Estimate(0.0, -0.12, 0.07, 9), 0.1)
    assert not equivalent(Estimate(0.0, math.nan, math.nan, 9), 0.1)


def test_simulated_tables_are_complete_and_have_the_spreads_asked_for():
    table = simulate(models=12, sets=15, repetitions=2, affinity=0.5, judge_sd=2, author_sd=1, beta=3, seed=0)
    assert table.groupby(["judge", "item"]).size().eq(2).all()
    assert (len(table), table["item"].nunique()) == (12 * 180 * 2, 180)
    assert table.groupby("item")["author"].nunique().eq(1).all()
    repetitions = table.pivot_table(values="value", index=["judge", "item"], columns="repetition")
    assert (repetitions[0] - repetitions[1]).std() / math.sqrt(2) == pytest.approx(0.5, rel=0.05)
    cells = own(table).groupby(["judge", "author"], as_index=False)[["value", "own"]].mean()
    fit = smf.ols("value ~ own + C(judge) + C(author)", cells).fit()
    assert math.sqrt(fit.mse_resid) == pytest.approx(0.5, rel=0.15)
    assert fit.params["own"] == pytest.approx(3, abs=0.5)
    assert raw_gaps(simulate(models=3, sets=2, beta=1, seed=7)).equals(
        raw_gaps(simulate(models=3, sets=2, beta=1, seed=7))
    )


def random_intercepts(table: pd.DataFrame, *terms: str):
    """statsmodels' mixed model with a crossed random intercept for each term, fitted by its default optimisers."""
    parts = {term: f"0 + C({term})" for term in terms}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return smf.mixedlm(
            "value ~ own", own(table), groups=np.ones(len(table)), re_formula="0", vc_formula=parts
        ).fit()


def test_mixed_model_is_the_cell_model_on_a_complete_table():
    table = simulate(models=4, sets=8, affinity=0.4, author_sd=1, set_sd=0.5, seed=2)
    ours, cells = mixed_model(table), cell_model(table)
    assert ours.value == pytest.approx(cells.value, abs=1e-9)
    assert error_of(ours, 8) == pytest.approx(error_of(cells, 8), rel=1e-4)
    assert ours.n == 4 * 32


def test_naive_model_is_the_one_with_random_judge_and_item_intercepts():
    table = simulate(models=4, sets=6, repetitions=2, judge_sd=1, set_sd=0.8, seed=2)
    fit, ours = random_intercepts(table, "judge", "item"), naive_model(table)
    assert ours.value == pytest.approx(fit.params["own"], abs=1e-9)
    assert error_of(ours, len(table) - 4 - 24) == pytest.approx(fit.bse["own"], rel=1e-3)


@pytest.mark.slow
def test_averaged_repetitions_are_the_model_with_judge_by_item_intercepts():
    table = simulate(models=4, sets=6, repetitions=3, affinity=0.4, author_sd=1, set_sd=0.5, cell_sd=0.6, seed=8)
    table["cell"], table["pair"] = table["judge"] + table["author"], table["judge"] + table["item"].astype(str)
    fit, ours = random_intercepts(table, "judge", "author", "cell", "item", "pair"), mixed_model(table)
    assert fit.converged
    assert ours.value == pytest.approx(fit.params["own"], abs=1e-8)
    assert error_of(ours, 8) == pytest.approx(fit.bse["own"], rel=1e-3)


@pytest.mark.slow
def test_the_papers_size_in_a_mixed_model_is_the_cell_model():
    table = simulate(models=10, sets=8, repetitions=3, beta=0.1, seed=9)
    ours, cells = mixed_model(table), cell_model(table)
    assert ours.value == pytest.approx(cells.value, abs=1e-8)
    assert error_of(ours, 80) == pytest.approx(error_of(cells, 80), rel=1e-4)


def test_missing_cells_leave_an_interval_around_the_planted_preference():
    table = simulate(models=6, sets=6, beta=0.6, affinity=0.1, seed=11)
    gone = (table["judge"] == "model 00") & (table["author"] == "model 01")
    table = without(table[~gone], 0.2)
    ours = mixed_model(table)
    assert "t(23)" in ours.rule  # one of 36 cells is gone: (6 - 1)^2 - 1 - 1
    assert ours.low < 0.6 < ours.high
    assert ours.value == pytest.approx(fixed_effects(table), abs=0.1)
    assert math.isnan(permutation_p(table))


def scored(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(value=np.clip(np.rint(table["value"]), 1, 7))


def test_ordinal_model_has_the_logit_of_two_levels():
    table = own(COMPLETE.assign(value=(COMPLETE["value"] > 4).astype(int)))
    fit = smf.logit("value ~ own + C(judge) + C(author)", table).fit(disp=False)
    groups = table.groupby(["judge", "author"]).ngroup()
    robust = smf.logit("value ~ own + C(judge) + C(author)", table).fit(
        disp=False, cov_type="cluster", cov_kwds={"groups": groups}
    )
    ours = ordinal_model(table)
    assert ours.value == pytest.approx(fit.params["own"], abs=1e-3)
    assert error_of(ours, 15) == pytest.approx(robust.bse["own"] * math.sqrt(24 / 15), rel=1e-2)


def test_ordinal_model_sees_a_planted_preference_and_wants_integers():
    ours = ordinal_model(scored(simulate(models=5, sets=12, beta=0.7, affinity=0.1, seed=3)))
    assert ours.low > 0
    with pytest.raises(ParameterError, match="not integers"):
        ordinal_model(COMPLETE)


def labelled(
    *, judges: int = 4, each: int = 20, up: float = 0.4, down: float = -0.3, truth: float = 0.0, source: float = 0.2,
    human: float = 0.1, noise: float = 0.2, seed: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """Simulated: every judge scores `each` own sets and as many of the next judge's, in four arms."""
    rng, rows = np.random.default_rng(seed), []
    quality = rng.normal(0, 0.5, (judges, each))
    for judge, mine, item in itertools.product(range(judges), (True, False), range(each)):
        author = judge if mine else (judge + 1) % judges
        for arm, shift in {"self": up, "other": down, "none": 0.0, "human": human}.items():
            true = {"self": mine, "other": not mine}.get(arm)
            bonus = 0 if true is None else truth / 2 * (1 if true else -1)
            value = 4 + judge / 2 + source * mine + quality[author, item] + shift + bonus + rng.normal(0, noise)
            rows.append((f"j{judge}", f"{author}/{item}", mine, arm, value))
    return pd.DataFrame(rows, columns=["judge", "item", "own", "arm", "value"])


def test_planted_effects_of_labels_are_recovered():
    found = label_effects(labelled(truth=0.3), draws=500)
    planted = {"gap": 0.7, "self_inflation": 0.4, "other_deflation": -0.3, "truth": 0.3, "human": 0.1,
               "self_on_own": 0.55, "self_on_other": 0.25, "other_on_own": -0.45, "other_on_other": -0.15}  # fmt: skip
    for name, value in planted.items():
        assert found[name].low - 0.02 < value < found[name].high + 0.02, name
        assert found[name].high - found[name].low < 0.2, name
    assert set(found) == {*planted, "actual_source"}


def test_label_effects_are_the_formulas_on_means_of_cells():
    table = labelled(judges=3, each=7, seed=4)
    y = table.groupby(["arm", "own", "judge"])["value"].mean().groupby(["arm", "own"]).mean()
    true_self, false_other, false_self, true_other = (
        y["self", True],
        y["other", True],
        y["self", False],
        y["other", False],
    )
    found = {name: x.value for name, x in label_effects(table, draws=50).items()}
    expected = {
        "gap": (true_self + false_self - false_other - true_other) / 2,
        "self_inflation": (true_self + false_self - y["none", True] - y["none", False]) / 2,
        "other_deflation": (true_other + false_other - y["none", True] - y["none", False]) / 2,
        "truth": 0.5 * ((true_self + true_other) - (false_self + false_other)),
        "actual_source": 0.5 * ((true_self + false_other) - (false_self + true_other)),
        "self_on_own": true_self - y["none", True],
        "other_on_other": true_other - y["none", False],
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["gap"] == pytest.approx(found["self_inflation"] - found["other_deflation"])


def test_own_and_other_items_and_judges_weigh_equally_however_many_they_are():
    table = labelled(judges=2, each=6, noise=0, truth=0.4)
    fewer = table[~(table["own"] & table["item"].isin(["0/0", "0/1", "0/2"]))]
    assert label_effects(fewer, draws=50)["gap"].value == pytest.approx(0.7)
    assert label_effects(fewer, draws=50)["truth"].value == pytest.approx(0.4)


def test_label_intervals_of_one_judge_are_those_of_the_paired_differences():
    table = labelled(judges=1, each=40, noise=0.3)
    table = table.assign(item=table["item"] + table["own"].astype(str))
    wide = table.pivot(index=["own", "item"], columns="arm", values="value")
    difference = wide["self"] - wide["other"]
    error = math.sqrt(sum(difference[side].var() / 40 for side in (True, False))) / 2
    found = label_effects(table, draws=4_000)["gap"]
    assert found.value == pytest.approx(difference.mean())
    assert (found.low, found.high) == pytest.approx(
        (found.value - 1.96 * error, found.value + 1.96 * error), abs=0.15 * error
    )


def test_repetitions_are_averaged_and_add_no_evidence():
    table = labelled()
    twice = pd.concat([table, table.assign(value=table["value"] + 1)])
    once, both = label_effects(table, draws=200), label_effects(twice, draws=200)
    for name, estimate in once.items():
        assert (both[name].value, both[name].low) == pytest.approx((estimate.value, estimate.low)), name


def test_a_missing_arm_makes_nan_of_what_needs_it_and_of_nothing_else():
    found = label_effects(labelled().query("arm not in ['none', 'human']"), draws=100)
    lost = {"self_inflation", "other_deflation", "self_on_own", "self_on_other", "other_on_own", "other_on_other"}
    assert {name for name, x in found.items() if math.isnan(x.value)} == lost
    assert {name for name, x in found.items() if math.isnan(x.low)} == lost
    assert found["gap"].low > 0


def test_a_judge_without_own_items_is_not_dropped_silently():
    table = labelled()
    found = label_effects(table[(table["judge"] != "j2") | ~table["own"]], draws=100)
    assert math.isnan(found["gap"].value)
    assert math.isnan(found["self_on_own"].value)
    assert found["self_on_other"].low > 0
