"""Students: what training changes, what it costs to be stopped, and what it refuses."""

import math
import os
import signal
import subprocess
import sys

import pandas as pd
import pooch
import pytest

from reprolib.inference.judge import load_judge
from reprolib.training import PAPER, Settings, TrainingError, student_prompt, train

pytestmark = pytest.mark.filterwarnings("ignore")
FAST = Settings(learning_rate=1e-2, epochs=6, batch=8, micro_batch=4, max_length=64, dtype="float32")
TASKS = [f"Task {k}" for k in range(16)]


def examples(answer: str = " ten or twelve") -> pd.DataFrame:
    return pd.DataFrame({"prompt": [student_prompt(task) for task in TASKS], "completion": answer})


def test_the_papers_settings_are_the_released_ones():
    """Dossier 3.2: 1e-5 for SFT and 5e-6 for DPO, 3 epochs, cosine with a tenth of warm-up, 1,024 tokens, beta 0.1."""
    sft, dpo = PAPER["sft"], PAPER["dpo"]
    assert (sft.learning_rate, dpo.learning_rate) == (1e-5, 5e-6)
    assert {(s.epochs, s.warm_up, s.max_length, s.batch, s.lora_rank) for s in (sft, dpo)} == {(3, 0.1, 1024, 32, 0)}
    assert (dpo.beta, dpo.micro_batch, sft.micro_batch) == (0.1, 1, 2)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_student_learns_its_teachers_text_and_when_to_stop(toy_folder, tmp_path, rank):
    losses = train(toy_folder, examples(), tmp_path / "student", Settings(**vars(FAST) | {"lora_rank": rank}))
    assert losses["step"].tolist() == list(range(1, 13))
    assert losses["loss"].iloc[-1] < losses["loss"].iloc[0] / (4 if rank == 0 else 1.2)
    assert not list((tmp_path / "student").glob("*.bin"))
    if rank == 0:
        said = load_judge(str(tmp_path / "student")).generate([student_prompt("Task 3")], max_new_tokens=20)
        assert said["text"][0] == " ten or twelve"
        assert said["stopped"][0]


def test_dpo_moves_a_student_towards_what_was_chosen(toy_folder, tmp_path):
    rows = examples().rename(columns={"completion": "chosen"}).assign(rejected=" one to six")
    settings = Settings(**vars(FAST) | {"method": "dpo", "learning_rate": 1e-3})
    losses = train(toy_folder, rows, tmp_path / "student", settings)
    assert losses["loss"].iloc[0] == pytest.approx(math.log(2), abs=1e-4)  # policy and reference are still one
    assert losses["loss"].iloc[-1] < 0.5
    lean = {}
    for folder in (toy_folder, tmp_path / "student"):
        scores = load_judge(str(folder)).label_logprobs(
            [student_prompt("Task 3")], [" ten or twelve", " one to six"], min_mass=0
        )
        lean[folder] = scores.iloc[0][["logp_ ten or twelve", "logp_ one to six"]].diff().iloc[-1]
    assert lean[tmp_path / "student"] < lean[toy_folder]


def test_the_same_inputs_give_the_same_weights_and_are_not_trained_twice(toy_folder, tmp_path):
    first, second = (train(toy_folder, examples(), tmp_path / name, FAST) for name in ("one", "two"))
    pd.testing.assert_frame_equal(first, second)
    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert pooch.file_hash(one) == pooch.file_hash(two)
    before = one.stat().st_mtime_ns
    pd.testing.assert_frame_equal(train(toy_folder, examples(), tmp_path / "one", FAST), first)
    assert one.stat().st_mtime_ns == before
    train(toy_folder, examples(" one"), tmp_path / "one", FAST)  # other examples: another student
    assert pooch.file_hash(one) != pooch.file_hash(two)


def test_damaged_weights_are_trained_again(toy_folder, tmp_path):
    train(toy_folder, examples(), tmp_path / "one", FAST)
    weights = tmp_path / "one" / "model.safetensors"
    digest = pooch.file_hash(weights)
    weights.write_bytes(weights.read_bytes()[:-8] + bytes(8))
    train(toy_folder, examples(), tmp_path / "one", FAST)
    assert pooch.file_hash(weights) == digest


KILLED = """
import os, signal, sys
from pathlib import Path
import transformers
from tests.training.test_training import FAST, examples
from reprolib.training import train

at = int(sys.argv[3])
class Kill(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == at:
            os.kill(os.getpid(), signal.SIGKILL)
import reprolib.training as training
made = training._trainer
training._trainer = lambda *a, **k: (lambda t: (t.add_callback(Kill()), t)[1])(made(*a, **k))
train(Path(sys.argv[1]), examples(), Path(sys.argv[2]), FAST)
"""


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_a_killed_training_goes_on_to_the_same_weights(root, toy_folder, tmp_path, at):
    whole = train(toy_folder, examples(), tmp_path / "whole", FAST)
    script = [sys.executable, "-c", KILLED, str(toy_folder), str(tmp_path / "killed"), str(at)]
    assert subprocess.run(script, cwd=root, capture_output=True).returncode == -signal.SIGKILL
    if at > 2:  # the last checkpoint was cut short: the one before it serves
        newest = max((tmp_path / "killed" / "checkpoints").glob("checkpoint-*"), key=os.path.getmtime)
        (newest / "trainer_state.json").write_text("{")
    resumed = train(toy_folder, examples(), tmp_path / "killed", FAST)
    pd.testing.assert_frame_equal(resumed, whole)
    digests = {pooch.file_hash(tmp_path / name / "model.safetensors") for name in ("whole", "killed")}
    assert len(digests) == 1
    assert not (tmp_path / "killed" / "checkpoints").exists()


def test_a_diverging_loss_stops_with_a_clear_line(toy_folder, tmp_path):
    with pytest.raises(TrainingError, match=r"the training diverges; take a smaller learning_rate"):
        train(toy_folder, examples(), tmp_path / "student", Settings(**vars(FAST) | {"learning_rate": 1e4}))
    assert not (tmp_path / "student" / "student.json").exists()


def test_a_lack_of_memory_is_a_clear_line(toy_folder, tmp_path, monkeypatch):
    import trl

    def fail(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(trl.SFTTrainer, "compute_loss", fail)
    with pytest.raises(TrainingError, match="no memory to train student; take a smaller micro_batch"):
        train(toy_folder, examples(), tmp_path / "student", FAST)


@pytest.mark.parametrize("rows", [pd.DataFrame({"prompt": ["a"]}), pd.DataFrame({"prompt": [], "completion": []})])
def test_examples_that_are_none_are_refused(toy_folder, tmp_path, rows):
    with pytest.raises(TrainingError, match="give a table with prompt, completion"):
        train(toy_folder, rows, tmp_path / "student", FAST)


def test_a_folder_of_something_else_is_left_alone(toy_folder, tmp_path):
    (tmp_path / "thesis.txt").write_text("three years")
    with pytest.raises(TrainingError, match="holds something that is no student"):
        train(toy_folder, examples(), tmp_path, FAST)
    assert (tmp_path / "thesis.txt").read_text() == "three years"


def test_text_is_never_a_template(toy_folder, tmp_path):
    odd = "{{ 7 * 7 }} {0} %s {% raw %} $x \\1"
    train(toy_folder, examples(odd), tmp_path / "student", Settings(**vars(FAST) | {"epochs": 20}))
    said = load_judge(str(tmp_path / "student")).generate([student_prompt("Task 3")], max_new_tokens=60)
    assert said["text"][0] == odd
    assert student_prompt(odd, [(odd, odd)]).count(odd) == 3
