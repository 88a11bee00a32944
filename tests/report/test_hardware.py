"""What the papers' designs cost, by hand and by the papers' counts; the page's commands against the CLI."""

import re
import shlex

import pytest
import typer

from reprolib import cli
from reprolib.errors import ParameterError
from reprolib.evidence import published, recipe
from reprolib.inference.cluster import part_of
from reprolib.inference.weights import registry
from reprolib.report import run, site


def priced(*chapters, profile="paper", tflops=400.0):
    return run.costs(chapters, profile=profile, tflops=tflops)


def test_score_range_coherence_of_six_models_agrees_with_an_independent_estimate():
    table = priced("contrastive_decoding", profile="gpu")
    assert table.model.nunique() == len(table) == 6
    assert table.pflop.sum() == pytest.approx(382, abs=0.6)
    assert table.pflop_shared.sum() == pytest.approx(65, abs=0.6)
    assert table.calls.sum() == 6 * 4 * 1600
    assert table.memory.max() == pytest.approx(29.5, abs=0.05)
    assert table.memory.sum() == pytest.approx(76, abs=0.1)
    assert table.hours.sum() * 60 == pytest.approx(16, abs=0.1)  # minutes, at 400 TFLOP/s
    three = priced("score_range_bias")
    assert three.pflop.sum() / table.pflop.sum() == pytest.approx(2.9, abs=0.05)
    assert three.pflop_shared.sum() / table.pflop_shared.sum() == pytest.approx(3.2, abs=0.05)


def test_overlap_has_the_calls_and_tokens_of_the_full_grid():
    table = priced("overlap_bias")
    judging = table[table.step.str.startswith("judging")]
    assert judging.calls.sum() == 6744 * 9 * 2 == 121_392
    assert judging.prompt_tokens.sum() == pytest.approx(206, abs=0.5)
    assert judging.shared_tokens.sum() == pytest.approx(44, abs=0.6)
    assert judging.pflop.sum() == pytest.approx(2200, rel=0.01)
    written = table[table.step.str.contains("summaries")]
    assert written.groupby(written.step.str.startswith("rewritten")).calls.sum().tolist() == [2810, 3934]
    assert written.calls.sum() == 6744
    sizes = published("overlap_models").set_index("model").billions
    known = table.dropna(subset="billions")
    assert (known.billions == known.model.map(sizes)).all()
    assert set(table.model) == set(sizes.index)
    assert table[table.billions.isna()].model.unique().tolist() == ["GPT-4o mini"]


def test_labels_have_14100_calls_and_the_small_version_4200():
    table, small = priced("label_blind", "label_effect"), priced("label_effect", profile="gpu")
    assert table.calls.sum() == 300 + 9000 + 4800 == 14_100
    assert table[["prompt_tokens", "new_tokens"]].sum().tolist() == pytest.approx([21.4, 1.9])
    assert table.pflop.isna().all()  # served: the size is not public
    assert small.calls.sum() == 150 + 2250 + 1800
    assert small.prompt_tokens.sum() == pytest.approx(6.6, abs=0.05)
    assert small.billions.between(1, 8.1).all()


def test_leakage_has_the_runs_and_judgments_of_the_design():
    table = priced("leakage_main")
    training = table[table.step.str.startswith("training")]
    assert training.prompt_tokens.sum() / 45 == 41  # runs
    calls = table.groupby(table.step.str.removesuffix(", served")).calls.sum()
    assert calls["writing training texts"] == 90_000 + 120_000
    assert calls["Arena-Hard games"] == 58_000
    assert calls["AlpacaEval verdicts"] == 58 * 805
    assert calls["recognition"] == 7245 + 4830
    assert calls["categories"] == 1305 + 4000


def test_arithmetic_by_hand():
    table = priced().set_index(["step", "model"])
    judged = table.loc[("Arena-Hard games", "Llama-3.3-70B")]  # 6,000 x 2,700 tokens, 70.6e9 parameters
    assert judged.pflop == pytest.approx(2 * 70.6e9 * 6000 * 2700 / 1e15)
    assert judged.hours == pytest.approx(judged.pflop * 1e15 / 400e12 / 3600)
    assert judged.memory == pytest.approx(141.2)
    trained = table.loc[("training, main table", "Mistral-7B-v0.1")]  # 3 runs x 3 epochs x 30,000 x 500 tokens
    assert trained.pflop == pytest.approx(6 * 7.24e9 * 3 * 3 * 30_000 * 500 / 1e15)
    assert trained.memory == pytest.approx(7.24 * 16)
    assert priced(tflops=0.1).hours.sum() == pytest.approx(4000 * priced().hours.sum())
    assert (table.pflop_shared.dropna() <= table.pflop.dropna() + 1e-9).all()


def test_the_gpu_profile_is_open_models_that_fit_and_part_of_the_papers_but_for_the_small_label_study():
    table = priced(profile="gpu")
    assert (table.billions <= 14.8).all()
    assert table[~table.step.str.startswith("training")].memory.max() < 80
    same = ["study", "step", "model"]
    both = table.merge(priced(), on=same, how="left", suffixes=("", "_paper"))
    assert set(both[both.calls_paper.isna()].study) == {"label_bias"}


def test_a_planned_profile_runs_nothing_without_plan(capsys):
    for arguments in ("run overlap_bias --profile gpu", "run --profile paper --plan -p seed=1"):
        assert cli.main(arguments.split()) == 1
        error = capsys.readouterr().err
        assert "no chapter runs with the profile" in error
        assert "reprolib record STUDY MODEL --device cuda" in error
    with pytest.raises(ParameterError, match="ask no model anything"):
        priced("evidence_check")
    with pytest.raises(ParameterError, match="did you mean 'overlap_bias'"):
        priced("overlap_bais")


def test_plan_prints_models_total_and_throughput(capsys):
    assert cli.main(["run", "label_blind", "overlap_bias", "--profile", "paper", "--plan", "--tflops", "0.1"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"judging +Qwen3-8B +13,488", text)
    assert re.search(r"GPT-4o mini .*not known", text)
    assert re.search(r"total +142,236 ", text)  # 121,392 + 6,744 + 14,100
    assert "at 0.1 TFLOP/s" in text
    assert cli.main(["run", "label_blind", "--profile", "paper", "--plan"]) == 0
    assert re.search(r"total .* not known +not known +not known$", capsys.readouterr().out, re.MULTILINE)


def commands(text):
    """Every `reprolib` command of a text as a list of words, loop and array variables filled in."""
    text = re.sub(r"\$\(\(i\+1\)\)|\$SLURM_ARRAY_TASK_ID", "1", text).replace("$i", "0")
    text = text.replace('reprolib"', "reprolib")
    return [shlex.split(found) for found in re.findall(r"(?:\bbin/|`)reprolib ([^\"`&#\n]+)", text)]


def test_every_command_of_the_page_is_one_that_the_program_takes(root):
    page, program = (root / "book" / "hardware.md").read_text(), typer.main.get_command(cli.app)
    fenced = commands("".join(re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)))
    assert sum("--shard" in words for words in fenced) >= 3
    assert sum("--ray" in words for words in fenced) >= 3
    for name, *words in fenced:  # refused unless every option exists and every value has its type
        given = program.commands[name].make_context(name, words).params
        if name == "record":
            assert hasattr(recipe(given["study"]), "record")
            assert given["judge"] in registry()
        if name == "weights":
            assert set(given["names"]) <= set(registry())
        if given.get("shard"):
            assert len(part_of(8, given["shard"])) > 0
    for name, *words in commands(re.sub(r"^```bash\n.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)):
        known = {text for parameter in program.commands[name].params for text in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, f"{name} {words}"


def test_the_page_shows_every_step_of_both_profiles_and_the_measured_table(project):
    site.write_pages()
    page = (project / "book/generated/hardware.md").read_text()
    assert "| overlap | judging | 8 models | 107,904 | 183.4 | 38.7 |" in page
    assert "| overlap | judging, served | GPT-4o mini | 13,488 | 22.9 | 4.8 | 0.1 | not known |" in page
    for profile in run.PLANNED:
        for study, step in priced(profile=profile).groupby(["study", "step"]).groups:
            assert f"| {study} | {step} |" in page.replace("&#39;", "'")
    measured = re.findall(r"^\| `judge.label_logprobs`.*", (project / "benchmarks/README.md").read_text(), re.MULTILINE)
    assert measured[0] in page
