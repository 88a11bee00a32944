import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

from reprolib.evidence import download, public, published, recipe
from reprolib.metrics.resampling import multinomial_bootstrap, wilson
from reprolib.studies import leakage

probes = recipe("leakage")


def test_placebo_matches_a_hand_computed_row():
    # Mistral, GPT-4o & Gemini on Arena-Hard with LLaMA as reference: 28.7 / 10.0 / 19.4
    row = probes.third_judge().iloc[0]
    assert (row.both, row.a_alone, row.b_alone) == pytest.approx((28.7, 10.0, 19.4), abs=0.05)


def test_human_gaps_match_the_printed_rates():
    gaps = probes.human_gaps(draws=100).value.round(1)
    assert gaps.to_dict() == {"gpt.gpt_gemini": 5.4, "gemini.gpt_gemini": 12.8, "gpt.gpt_llama": 5.8,
                    "llama.gpt_llama": -10.1, "llama.llama_gemini": 3.0, "gemini.llama_gemini": 18.9}  # fmt: skip


def boards():
    return published("leakage_leaderboards")


class TestRecognition:
    @pytest.mark.parametrize(("accuracy", "yes"), [(0.410, 0.77), (0.532, 0.40), (0.418, 0.75)])
    def test_blind_yes_rates_of_table_5(self, accuracy, yes):
        assert probes.recognition_bounds(accuracy)[0] == pytest.approx(yes, abs=0.005)

    def test_bounds_hold_every_judge_with_that_accuracy_and_are_reached(self):
        low, high = probes.recognition_bounds(0.5)[1:]
        yes_own, yes_other = np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 1, 401))
        right = yes_own / 3 + (1 - yes_other) * 2 / 3
        gaps = (yes_own - yes_other)[np.abs(right - 0.5) < 1e-3]
        assert (gaps.min(), gaps.max()) == pytest.approx((low, high), abs=0.01)

    def test_a_simulated_blind_judge_scores_what_the_curve_says(self):
        rng = np.random.default_rng(0)
        own, yes = rng.random(100_000) < 1 / 3, rng.random(100_000) < 0.77
        assert probes.recognition_bounds(float(np.mean(own == yes)))[0] == pytest.approx(0.77, abs=0.02)

    def test_llama_lies_16_standard_errors_below_a_coin_and_one_count_gives_berts_accuracy(self):
        llama = published("leakage_recognition").query("judge == 'LLaMA-3.3' and design == 'pairwise'").iloc[0]
        assert (50 - llama.accuracy) / 100 / np.sqrt(0.25 / llama.n) == pytest.approx(16.2, abs=0.05)
        assert [k for k in range(484) if round(100 * k / 483, 1) == 82.4] == [398]
        assert wilson(398, 483).scaled(100).text() == "82.4 [78.8, 85.5]"

    def test_own_student_is_first_always_half_the_time_and_never(self):
        first = published("leakage_recognition_order").groupby("judge").own_first.mean()
        assert first.to_dict() == {"GPT-4o": 1.0, "Gemini-1.5": 0.5, "LLaMA-3.3": 0.0}


class TestTypes:
    def test_counts_are_those_counted_by_hand(self):
        values = public.result("leakage_types").values
        arena, alpaca = values["counts"]
        assert (sum(arena.values()), sum(alpaca.values()), values["off_list"]) == (500, 805, 2)
        assert (arena["Programming"], alpaca["Programming"], alpaca["Daily life"]) == (366, 142, 276)
        assert sum(values["gemini_student_wins"].values()) == 611
        rates = {t: round(100 * w / alpaca[t], 1) for t, w in values["gemini_student_wins"].items()}
        assert (rates["Programming"], rates["Mathematics"], rates["Business"]) == (79.6, 67.6, 82.6)

    def test_with_data_they_are_recomputed_and_agree(self, mirror):
        assert public.result("leakage_types").recomputed

    def test_noise_shrinks_with_the_number_of_questions(self):
        table = probes.type_scores(draws=4_000, seed=1).set_index("type")
        assert table.sd["Mathematics"] == pytest.approx(9, abs=1)  # 69 questions, other code: 9
        assert table.sd["Others"] == pytest.approx(12, abs=1.5)
        assert stats.spearmanr(table.sd, table.arena_hard + table.alpaca_eval).statistic == pytest.approx(-1)
        weights = table.arena_hard + table.alpaca_eval
        assert np.average(table.value, weights=weights) == pytest.approx(22.9, abs=0.05)

    def test_a_mix_of_benchmarks_scores_between_them_and_an_average_does_not_move(self):
        pooled, averaged = (probes.type_scores(pooled=p, draws=200) for p in (True, False))
        assert pooled.mix.between(18.42, 28.72).all()
        assert averaged.mix.to_numpy() == pytest.approx(23.567, abs=0.001)

    def test_spread_between_groups_agrees_with_statsmodels_and_its_interval_covers(self):
        values, sds = [7.7, 16.5, 17.2, 40.0], [3.0, 4.0, 2.0, 5.0]
        other = combine_effects(np.array(values), np.square(sds), method_re="iterated", atol=1e-10)
        assert probes.between_sd(values, sds).value ** 2 == pytest.approx(other.tau2, rel=1e-4)
        assert probes.between_sd([5.0, 5.1, 4.9], [1, 1, 1]).value == 0
        rng = np.random.default_rng(1)
        drawn = [probes.between_sd(rng.normal(0, np.hypot(3, sds)), sds) for _ in range(300)]
        assert np.mean([e.low <= 3 <= e.high for e in drawn]) == pytest.approx(0.95, abs=0.035)


# Arena position less AlpacaEval position of the 41 models in the order of the table, counted with other code.
GAPS = [0, -1, -3, 2, 1, -2, 2, -4, -2, 3, 1, -12, -2, 1, -7, -16, 1, 4, 10, 1, 4, 1, 3, -2, 7, 3, -4, 1, -4, 1, 3, 2,
        8, -2, 1, 1, -3, 0, 2, 1, 0]  # fmt: skip


class TestLeaderboards:
    def test_all_gaps_match_and_raw_rates_rank_otherwise(self):
        table = boards()
        gaps = probes.rank_gaps(table)
        assert gaps.tolist() == GAPS
        raw = probes.rank_gaps(table, by="win_rate")
        vicuna = table.arena_name.str.startswith("Vicuna")
        assert (gaps[4], gaps[vicuna].mean(), raw[4], raw[vicuna].mean()) == (1, pytest.approx(4 / 3), 3, 0)

    @pytest.mark.parametrize("version", ["v1.3", "v1.5"])
    def test_other_versions_of_vicuna_gain_two_positions(self, version):
        table = boards().set_index("arena_name")
        table.update(published("leakage_model_versions").query("version == @version").set_index("arena_name")
                     [["lc_win_rate"]])  # fmt: skip
        table = table.reset_index()
        assert probes.rank_gaps(table)[table.arena_name.str.startswith("Vicuna")].mean() == 2

    def test_a_third_of_all_triples_gain_as_much_as_vicuna(self):
        table = boards()
        estimate, reached = probes.beside_all_groups(probes.rank_gaps(table), table.arena_name.str.startswith("Vicuna"))
        rng = np.random.default_rng(3)
        drawn = np.array([rng.choice(GAPS, 3, replace=False).mean() for _ in range(20_000)])
        assert reached == pytest.approx(np.mean(drawn >= 4 / 3 - 1e-9), abs=0.015)
        assert (estimate.value - estimate.high, estimate.value - estimate.low) == pytest.approx(
            np.quantile(drawn, [0.025, 0.975]), abs=0.4
        )
        one, share = probes.beside_all_groups(probes.rank_gaps(table), table.arena_name == "GPT-4-1106-preview")
        assert (one.value, share) == (1, pytest.approx(24 / 41))

    def test_excess_of_one_model_is_the_error_of_predicting_it_from_the_others(self):
        table = boards()
        y, members = np.log(table.lc_win_rate / (100 - table.lc_win_rate)), table.arena_name == "GPT-4-1106-preview"
        line = stats.linregress(table.score[~members], y[~members])
        expected = (y - line.intercept - line.slope * table.score)[members].iloc[0]
        assert probes.score_excess(table, members).value == pytest.approx(expected)
        assert 100 * np.polyfit(table.score, y, 1)[0] == pytest.approx(0.97, abs=0.005)

    def test_excess_of_a_group_is_its_offset_at_equal_score(self):
        table = boards()
        y, members = np.log(table.lc_win_rate / (100 - table.lc_win_rate)), table.arena_name.str.startswith("Vicuna")
        x, m = table.score - table.score.mean(), members - members.mean()
        rest_y, rest_m = (v - v.mean() - x * (x @ v) / (x @ x) for v in (y, m))  # Frisch-Waugh: both without the score
        assert probes.score_excess(table, members).value == pytest.approx((rest_m @ rest_y) / (rest_m @ rest_m))

    def test_a_planted_lift_is_found(self):
        table = boards()
        members = pd.Series(np.arange(41) % 8 == 0)
        lifted = table.assign(lc_win_rate=(table.lc_win_rate + 30 * members).clip(upper=99))
        assert probes.score_excess(lifted, members).low > 0
        assert probes.beside_all_groups(probes.rank_gaps(lifted), members)[0].low > 0

    def test_every_row_equals_the_two_lists_that_the_authors_copied(self, mirror):
        arena_text, alpaca_text = (download.locate(f"leakage_{k}_list").read_text() for k in ("arena", "alpaca"))
        found = re.findall(r"^(.+)\n\n(\d+)\n\+(\d+)/-(\d+)$", arena_text, re.MULTILINE)
        arena = {name: (row, *map(int, rest)) for row, (name, *rest) in enumerate(dict.fromkeys(found), start=1)}
        lines = [x.split("\t") for x in alpaca_text.splitlines()[1:]]
        alpaca = {x[1].strip(" 📄"): (int(x[0]), *(float(v[:-1]) for v in x[2:])) for x in lines}
        assert (len(arena), len(alpaca), len(boards())) == (185, 67, 41)
        for row in boards().itertuples():
            assert arena[row.arena_name] == (row.arena_row, row.score, row.plus, row.minus)
            assert alpaca[row.alpaca_name] == (row.alpaca_rank, row.lc_win_rate, row.win_rate)
        for row in published("leakage_model_versions").query("version == 'v1.3'").itertuples():
            assert alpaca[f"{row.arena_name.replace('-', ' ')} v1.3"][1:] == (row.lc_win_rate, row.win_rate)


def test_small_groups_of_one_benchmark_have_the_noise_of_that_benchmark():
    # 37 AlpacaEval questions alone: the SD of 805 questions (about 2.5) times sqrt(805 / 37)
    e = multinomial_bootstrap([[55.1, 0, 44.9], [36.8, 0, 63.2]], 37, lambda s: 100 * probes.pls_of_shares(s), seed=2)
    assert (e.high - e.low) / 3.92 == pytest.approx(2.5 * np.sqrt(805 / 37), rel=0.1)


# Least-squares fits of the mixing series, done with other code: slope per 10 points of share, intercept, R2.
FITS = {
    ("manual", "AlpacaEval 2.0"): (1.61, 1.5, 0.978), ("manual", "Arena-Hard"): (1.99, 9.9, 0.942),
    ("synthetic", "AlpacaEval 2.0"): (2.06, -3.0, 0.978), ("synthetic", "Arena-Hard"): (3.16, -3.7, 0.981),
}  # fmt: skip


@pytest.fixture(scope="module")
def noise():
    return leakage.table1(draws=20_000, seed=5)


def cells(values, sd):
    frame = pd.DataFrame({"row": list("abcdefg")[: len(values)], "value": values, "sd": sd, "n": 500, "wobble": 0.01})
    return frame.assign(benchmark="Arena-Hard")


def test_how_often_an_order_returns_matches_the_normal_distribution():
    rows, levels = cells([10, 4], [3.0, 4.0]), [{"a": 1}, {"b": 1}]
    share = probes.order_share(rows, levels, key="row", draws=40_000, seed=1)
    assert share == pytest.approx(stats.norm.cdf(6 / 5), abs=0.01)
    assert probes.order_share(cells([10, 4], [0, 0]), levels[::-1], key="row", draws=10, seed=1) == 0


def test_the_four_mixing_fits_match_other_code(noise):
    mixing = leakage.with_noise(published("leakage_mixing"), noise, known="share == 100")
    for (filler, benchmark), (slope, intercept, r2) in FITS.items():
        rows = mixing[(mixing.filler == filler) & (mixing.benchmark == benchmark)]
        fit, other = probes.line(rows, rows.share), stats.linregress(rows.share, rows.value)
        assert (fit.at(0, 10).value, fit.at(1, 0).value) == pytest.approx((slope, intercept), abs=0.05)
        assert fit.at(1, 10).value == pytest.approx(other.intercept + 10 * other.slope)
        assert fit.r2 == pytest.approx(r2, abs=5e-4)
        assert fit.scatter / np.sqrt(((rows.share - 52) ** 2).sum()) == pytest.approx(other.stderr)


def test_intervals_of_a_line_cover_as_often_as_they_say():
    rng, x, sd = np.random.default_rng(3), np.array([10, 30, 50, 70, 100]), np.array([4.0, 4, 4, 4, 3])
    fits = [probes.line(cells(2 + 0.3 * x + rng.normal(0, sd), sd), x) for _ in range(1_500)]
    held = [f.at(1, 10).low < 5 < f.at(1, 10).high for f in fits]
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)
    assert np.mean([f.misfit for f in fits]) == pytest.approx(3, abs=0.2)  # chi-square on 3 degrees of freedom


def test_a_common_slope_within_groups_matches_statsmodels():
    import statsmodels.formula.api as smf

    rows = published("leakage_size").query("benchmark == 'Arena-Hard'").rename(columns={"pls": "value"})
    rows = rows.assign(doublings=np.log2(rows.billions), sd=4.5, n=500, wobble=0.0)
    fit = probes.line(rows, rows.doublings, groups=rows.series)
    other = smf.ols("value ~ doublings + series", rows).fit()
    assert fit.at(0, 0, 1).value == pytest.approx(other.params["doublings"])
    assert (fit.r2, fit.scatter**2) == pytest.approx((other.rsquared, other.mse_resid))
