"""The judge as a user meets it: what it refuses, what it keeps, what it records."""

from __future__ import annotations

import os
import re
import sqlite3
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from reprolib import cli
from reprolib.inference import JudgeError, weights
from reprolib.inference.judge import Judge, load_judge
from reprolib.inference.store import Store
from reprolib.inference.tokens import read_prompts


def _computed(frame: Any) -> int:
    return int(frame.attrs["run"]["rows_computed"])


def test_torch_is_not_loaded_by_importing_planning_or_storing() -> None:
    code = """if True:
    import sys, reprolib.inference.plan, reprolib.inference.store, reprolib.inference.tokens, reprolib.inference.judge
    print(sorted({"torch", "transformers"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("prompts", "labels", "message"),
    [
        (["fine", ""], ["A", "B"], "item second: the prompt is empty"),
        (["fine", "fine"], ["A", ""], "empty"),
        (["fine", "fine"], ["A", "A"], "'A' is given twice"),
        (["fine", "A or B?" * 200], ["A", "B"], r"item second: \d+ tokens do not fit.*truncate=True"),
    ],
)
def test_bad_input_is_refused_before_anything_is_computed(
    make_judge: Any, prompts: Any, labels: Any, message: str
) -> None:
    judge = make_judge()
    with pytest.raises(JudgeError, match=message):
        judge.label_logprobs(prompts, labels, items=["first", "second"])
    assert judge.engine.computed == 0


def test_truncation_on_request_is_recorded(make_judge: Any) -> None:
    frame = make_judge().label_logprobs(["short:", "A or B?" * 200], ["1", "2"], truncate=True, min_mass=0)
    assert frame["cut"].tolist()[0] == 0 < frame["cut"].tolist()[1]
    assert frame["n_tokens"].max() == 256


def test_labels_that_catch_too_little_probability_stop_the_run_and_finished_rows_stay(
    make_judge: Any, forest: list[str], tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    with pytest.raises(JudgeError, match=r"the labels catch .* in the median prompt, less than 0.9.*top_ids"):
        make_judge(pack_tokens=16).label_logprobs(forest, ["1", "2"], min_mass=0.9, store=store)
    again = make_judge().label_logprobs(forest, ["1", "2"], min_mass=0, store=store)
    assert 0 < _computed(again) < len(set(forest))


def test_in_label_mass_adds_disjoint_events_only(make_judge: Any, forest: list[str]) -> None:
    frame = make_judge().label_logprobs(forest[:5], ["1", " 12", " 1"], min_mass=0)
    assert np.allclose(frame["in_label_mass"], np.exp(frame["logp_1"]) + np.exp(frame["logp_ 1"]))


def test_all_tokens_as_labels_have_probability_one(make_judge: Any) -> None:
    judge = make_judge()
    texts = [chr(code) for code in range(33, 127)]
    row = judge.label_logprobs(["Score from 1 to 5:\n"], texts, min_mass=0).iloc[0]
    shares = {chr(c): np.exp(row[f"logit_{chr(c)}"] - row["logsumexp"]) for c in range(33, 127)}
    assert row["in_label_mass"] == pytest.approx(sum(shares.values()))
    assert row["in_label_mass"] < 1


def test_a_resumed_run_computes_what_is_missing_and_gives_the_same_table(
    make_judge: Any, forest: list[str], tmp_path: Path
) -> None:
    whole = make_judge().label_logprobs(forest, ["1", " 12"], min_mass=0)
    make_judge().label_logprobs(forest[:20], ["1", " 12"], min_mass=0, store=Store(tmp_path / "store"))
    resumed = make_judge().label_logprobs(forest, ["1", " 12"], min_mass=0, store=Store(tmp_path / "store"))
    assert _computed(resumed) == len(set(forest)) - len(set(forest[:20]))
    assert np.allclose(whole["logp_ 12"], resumed["logp_ 12"], atol=1e-12)
    again = make_judge().label_logprobs(forest, ["1", " 12"], min_mass=0, store=Store(tmp_path / "store"))
    assert _computed(again) == 0
    assert again["logp_ 12"].tolist() == resumed["logp_ 12"].tolist()


def test_nothing_is_loaded_when_nothing_is_missing(make_judge: Any, forest: list[str], tmp_path: Path) -> None:
    make_judge().label_logprobs(forest, ["1"], min_mass=0, store=Store(tmp_path / "store"))
    judge = make_judge()
    judge.label_logprobs(forest, ["1"], min_mass=0, store=Store(tmp_path / "store"))
    assert "engine" not in judge.__dict__


@pytest.mark.parametrize("change", [{"digest": "other"}, {"dtype": "float32"}])
def test_two_models_in_one_store_never_share_a_row(
    make_judge: Any, forest: list[str], tmp_path: Path, change: Any
) -> None:
    make_judge().label_logprobs(forest[:6], ["1"], min_mass=0, store=Store(tmp_path / "store"))
    assert (
        _computed(make_judge(**change).label_logprobs(forest[:6], ["1"], min_mass=0, store=Store(tmp_path / "store")))
        == 6
    )


def test_one_changed_character_or_label_is_another_row(make_judge: Any, tmp_path: Path) -> None:
    store, judge = Store(tmp_path / "store"), make_judge()
    judge.label_logprobs(["Which is better?"], ["1", "2"], min_mass=0, store=store)
    assert _computed(judge.label_logprobs(["Which is better!"], ["1", "2"], min_mass=0, store=store)) == 1
    assert _computed(judge.label_logprobs(["Which is better?"], ["1", "3"], min_mass=0, store=store)) == 1
    assert _computed(judge.generate(["Which is better?"], max_new_tokens=2, store=store)) == 1
    assert _computed(judge.generate(["Which is better?"], max_new_tokens=2, store=store, temperature=0.5)) == 1
    assert _computed(judge.generate(["Which is better?"], max_new_tokens=2, store=store)) == 0


def test_a_run_that_fails_notes_why_and_is_tried_again(make_judge: Any, forest: list[str], tmp_path: Path) -> None:
    store, judge = Store(tmp_path / "store"), make_judge(pack_tokens=128)

    def full(_module: Any, inputs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    hook = judge.engine.model.get_input_embeddings().register_forward_pre_hook(full)
    with pytest.raises(JudgeError, match="out of memory"):
        judge.label_logprobs(forest[:3], ["1"], min_mass=0, store=store)
    (path,) = store.folder.glob("*.sqlite")
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT status FROM judgments").fetchall() == [("failed",)] * 3
    hook.remove()
    assert _computed(judge.label_logprobs(forest[:3], ["1"], min_mass=0, store=store)) == 3


def test_the_contrast_of_two_head_widths_is_that_of_the_shared_ids(make_judge: Any, make_model: Any) -> None:
    prompts, wide = ["Score from 1 to 5:", "Score from 2 to 6:"], make_model(vocab_size=448)
    with torch.no_grad():  # the same model, but for rows beyond the tokenizer that shout
        narrow = make_model()
        state = {name: value for name, value in narrow.state_dict().items() if value.shape[:1] != (420,)}
        wide.load_state_dict(state, strict=False)
        for get in ("get_input_embeddings", "get_output_embeddings"):
            getattr(wide, get)().weight[:420] = getattr(narrow, get)().weight
            getattr(wide, get)().weight[420:] = 50.0
    first, second = (make_judge(model).label_logprobs(prompts, ["1", "5"], min_mass=0) for model in (narrow, wide))
    assert np.allclose(first["logp_1"] - second["logp_1"], 0, atol=1e-12)
    assert first["top_ids"].tolist() == second["top_ids"].tolist()


@pytest.mark.parametrize(
    "setting", [{"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"repetition_penalty": 0.0}]
)
def test_sampling_settings_out_of_range_are_refused(make_judge: Any, setting: Any) -> None:
    with pytest.raises(JudgeError, match="allowed: max_new_tokens >= 1"):
        make_judge().generate(["A or B?"], **{"max_new_tokens": 2} | setting)


def test_the_cost_told_before_is_the_cost_paid(make_judge: Any, forest: list[str]) -> None:
    judge = make_judge()
    cost = judge.cost(forest, ["1", " 12"])
    computed = judge.label_logprobs(forest, ["1", " 12"], min_mass=0).attrs["run"]["tokens_computed"]
    held = sum(len(judge.tokens.render(p, item="x").ids) for p in forest)
    assert f"{held:,} tokens; to compute: {computed:,} (each shared prefix once" in cost


@pytest.fixture
def judge_command(toy_folder: Path, forest: list[str], tmp_path: Path) -> Callable[..., int]:
    """Runs `reprolib judge` over 20 prompts, by the toy model and into one table; labels are 52 letters."""
    table = pd.DataFrame({"id": [f"i{n}" for n in range(20)], "prompt": sorted(set(forest))[:20]})
    table.to_json(tmp_path / "prompts.jsonl", orient="records", lines=True)
    files = [str(tmp_path / "prompts.jsonl"), str(tmp_path / "out.parquet")]
    return lambda *options: cli.main(["judge", *files, "--judge", str(toy_folder), *options])


LETTERS = ",".join(string.ascii_letters)


def test_the_command_scores_labels_into_a_table_and_a_second_run_computes_nothing(
    judge_command: Any, tmp_path: Path, capsys: Any
) -> None:
    for computed in (20, 0):
        assert judge_command("--labels", LETTERS) == 0
        assert f"20 rows, {computed} computed now" in capsys.readouterr().out
    table = pd.read_parquet(tmp_path / "out.parquet")
    assert table["item"].tolist() == [f"i{n}" for n in range(20)]
    assert np.allclose(
        np.exp(table[[f"logp_{letter}" for letter in string.ascii_letters]]).sum(axis=1), table["in_label_mass"]
    )


def test_after_two_shards_the_command_has_nothing_to_compute_for_the_whole(judge_command: Any, capsys: Any) -> None:
    for shard, told in (("1/2", "10 rows, 10"), ("2/2", "10 rows, 10"), ("1/1", "20 rows, 0")):
        assert judge_command("--labels", LETTERS, "--shard", shard) == 0
        assert f"{told} computed now" in capsys.readouterr().out


def test_the_command_writes_text(judge_command: Any, tmp_path: Path, capsys: Any) -> None:
    assert judge_command("--max-new-tokens", "3", "--shard", "1/10") == 0
    assert "2 rows, 2 computed now" in capsys.readouterr().out
    assert pd.read_parquet(tmp_path / "out.parquet")["n_new"].between(1, 3).all()


def test_a_planned_command_prints_the_cost_and_writes_nothing(judge_command: Any, tmp_path: Path, capsys: Any) -> None:
    assert judge_command("--labels", LETTERS, "--plan") == 0
    assert re.search(r"20 prompts, [\d,]+ tokens; to compute: .*TFLOP", capsys.readouterr().out)
    assert [path.name for path in tmp_path.glob("out*")] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--labels", "A,B", "--shard", "3/2"], "there is no shard '3/2'; give i/n"),
        ([], "give either --labels"),
        (["--labels", "A,B", "--max-new-tokens", "3"], "give either --labels"),
    ],
)
def test_a_command_that_cannot_be_done_is_one_line_and_exit_status_1(
    judge_command: Any, capsys: Any, options: list[str], message: str
) -> None:
    assert judge_command(*options) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("reprolib: ")
    assert message in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": 1}\n', "columns id"),
        ('{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n', "an id stands twice"),
        ("not json\n", "cannot be read"),
    ],
)
def test_a_table_of_prompts_that_is_not_one_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(JudgeError, match=message):
        read_prompts(path)


@pytest.mark.slow
def test_smollm2_answers_from_its_wheel_with_the_network_closed() -> None:
    if not weights.at_hand("smollm2-135m"):
        pytest.skip("weights of smollm2-135m are not at hand")
    code = """if True:
    import socket
    def closed(*_, **__): raise OSError("no network")
    socket.socket.connect = closed
    from reprolib.inference import load_judge
    judge = load_judge("smollm2-135m")
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    print(judge.generate([chat], max_new_tokens=8)["text"][0])"""
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env).stdout
    assert "Paris" in out
    assert load_judge("smollm2-135m").context == 8192


def test_choices_are_different_options_and_greedy_ones_follow_the_model_step_by_step(
    make_judge: Callable[..., Judge], make_model: Callable[..., Any]
) -> None:
    model = make_model()
    judge, options = make_judge(model), [f"{n:03}" for n in range(40)]
    asked: dict[str, Any] = {"max_new_tokens": 60, "temperature": 1.0, "seed": 3, "options": options, "count": 6}
    chosen = judge.generate(["Choose: ", "The bus leaves at "], **asked)["text"]
    assert all(len({*text.split(",")}) == 6 and {*text.split(",")} <= {*options} for text in chosen)
    again = judge.generate(["The bus leaves at "], **asked)["text"]
    assert again[0] == chosen[1]  # neither order nor batch matters
    greedy = judge.generate(["Choose: "], max_new_tokens=60, options=options, count=3)["text"][0]
    ids = judge.tokens.render("Choose: ", item="").ids
    left, want = {judge.tokens.ids(option): option for option in options}, []
    for _ in range(3):  # token by token, by the best of those that some option left begins with
        spelt: tuple[int, ...] = ()
        while spelt not in left:
            logits = model(torch.tensor([ids])).logits[0, -1].tolist()
            may = {option[len(spelt)] for option in left if option[: len(spelt)] == spelt}
            spelt += (max(may, key=logits.__getitem__),)
            ids += spelt[-1:]
        want.append(left.pop(spelt))
        ids += judge.tokens.ids(",")
    assert greedy == ",".join(want)
    with pytest.raises(JudgeError, match="beginning of another"):
        judge.generate(["Choose: "], max_new_tokens=9, options=["1", "12"], count=2)
