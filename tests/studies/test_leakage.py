import numpy as np
import pandas as pd
import pytest

from reprolib.errors import EvidenceError
from reprolib.evidence import published
from reprolib.studies import leakage

# Acceptance numbers computed by hand from the printed rates (percent).
TABLE1 = {
    "arena_hard.mistral.gpt_gemini": 28.714, "arena_hard.mistral.gpt_llama": -1.546,
    "arena_hard.mistral.llama_gemini": 13.087, "arena_hard.qwen.gpt_gemini": 37.091,
    "arena_hard.qwen.gpt_llama": 0.985, "arena_hard.qwen.llama_gemini": 25.378,
    "alpaca_eval.mistral.gpt_gemini": 18.421, "alpaca_eval.mistral.gpt_llama": 1.365,
    "alpaca_eval.mistral.llama_gemini": 19.735, "alpaca_eval.qwen.gpt_gemini": 18.516,
    "alpaca_eval.qwen.gpt_llama": 2.299, "alpaca_eval.qwen.llama_gemini": 18.463,
}  # fmt: skip
HALF = [17.668, 1.625, 5.927, 25.574, 8.465, 18.077]


def test_table_1_comes_out_to_three_decimals_and_within_print():
    cells = leakage.table1(draws=100)
    assert cells.value[list(TABLE1)].to_dict() == pytest.approx(TABLE1, abs=5e-4)
    assert (cells.value - cells.printed).abs().max() < 0.12


def test_half_credit_for_ties_gives_other_numbers_on_arena_hard_only():
    cells = leakage.table1(tie_rule="half", draws=100)
    assert cells.value[:6].tolist() == pytest.approx(HALF, abs=5e-4)
    assert cells.value[6:12].tolist() == pytest.approx(list(TABLE1.values())[6:], abs=5e-4)


def test_intervals_have_the_width_of_an_independent_bootstrap():
    # 20,000 draws with other code: Mistral, GPT-4o & Gemini-1.5: Arena-Hard 21.3..36.3, AlpacaEval 13.6..23.2
    cells = leakage.table1(draws=20_000, seed=5)
    arena, alpaca = (cells.loc[f"{benchmark}.mistral.gpt_gemini"] for benchmark in ("arena_hard", "alpaca_eval"))
    assert (arena.low, arena.high) == pytest.approx((21.3, 36.3), abs=0.4)
    assert (alpaca.low, alpaca.high) == pytest.approx((13.6, 23.2), abs=0.4)


def test_rounding_of_inputs_explains_the_cells_that_print_differently():
    low, high = leakage.table1(draws=100).inputs["alpaca_eval.mistral.llama_gemini"]
    assert (low, high) == pytest.approx((19.62, 19.85), abs=0.005)


def test_the_two_unbalanced_rows_are_found():
    totals = published("leakage_raw_rates")[["win_a", "tie", "win_b"]].sum(axis=1).round(1)
    assert sorted(totals[(totals - 100).abs() > 0.15]) == [99.0, 100.6]


def test_benchmark_gap_vanishes_with_half_credit():
    def gap(pls):
        return pls[..., :6].mean(axis=-1) - pls[..., 6:].mean(axis=-1)

    strict, half = (leakage.resample_pls(gap, tie_rule=r, draws=2_000) for r in ("strict", "half"))
    assert (strict.value, half.value) == pytest.approx((4.152, -0.244), abs=0.001)
    assert half.low < 0 < half.high


def lab(folder, questions=200, bias=0.3, seed=0):
    """A lab whose two judges each add `bias` to the chance that their own student wins both games."""
    rng = np.random.default_rng(seed)
    rows = []
    for q in range(questions):
        for judge, lean in (("gen_a", bias), ("gen_b", -bias)):
            winner = "A" if rng.random() < 0.5 + lean / 2 else "B"
            rows += [
                dict(study="lab", pair_id=f"q{q}", cluster_id=f"q{q}", judge=judge, condition="sft", arm="none",
                     repetition=0, order=order, author_a="gen_a", author_b="gen_b", verdict=winner, n_tokens=1,
                     prompt_digest="d")
                for order in (0, 1)
            ]  # fmt: skip
    table = pd.DataFrame(rows)
    table.to_parquet(folder / "pairwise.parquet")
    return table


def test_lab_recovers_a_planted_leakage(tmp_path):
    lab(tmp_path, questions=2_000, bias=0.3)
    (row,) = leakage.lab_table(tmp_path, draws=500).itertuples()
    assert row.low < 30 < row.high
    assert row.n == 2_000
    assert row.high - row.low < 12


def test_lab_counts_unparsed_games_as_ties_and_says_how_many(tmp_path):
    table = lab(tmp_path)
    table.loc[:9, "verdict"] = "unparsed"
    table.to_parquet(tmp_path / "pairwise.parquet")
    (row,) = leakage.lab_table(tmp_path, draws=200).itertuples()
    assert row.n_unparsed == 10


def test_lab_without_file_or_with_a_bad_verdict_says_so(tmp_path):
    with pytest.raises(EvidenceError, match=r"holds no pairwise\.parquet"):
        leakage.lab_table(tmp_path)
    table = lab(tmp_path)
    table.loc[0, "verdict"] = "C"
    table.to_parquet(tmp_path / "pairwise.parquet")
    with pytest.raises(EvidenceError, match="verdict is C; allowed: A, B, tie, unparsed"):
        leakage.lab_table(tmp_path)
