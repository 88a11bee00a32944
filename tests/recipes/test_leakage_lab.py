"""The lab on a toy transformer: planted generators and judges, real training, answers, games and records."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from reprolib.errors import EvidenceError, ParameterError
from reprolib.evidence import recipe
from reprolib.inference.judge import load_judge
from reprolib.metrics.leakage import leakage_log_odds
from reprolib.studies.leakage import lab_table
from reprolib.training import Settings

lab = recipe("leakage_lab")
pytestmark = pytest.mark.filterwarnings("ignore")
HABITS = {"gen_a": "ten", "gen_b": "six"}
SIZES = {"lab": "leakage_lab_toy", "generators": "gen_a,gen_b", "prompts": "16", "questions": "12", "tokens": "12"}
FAST = Settings(learning_rate=1e-2, epochs=4, batch=8, micro_batch=4, max_length=128, dtype="float32", checkpoints=2)
WORDS = ["bus", "train", "article", "summary", "answer", "score"]


class Planted:
    """A generator that always writes its favourite word, and a judge that leans to answers with it.

    By 2 nats a word, and 1 nat to the first text. `shuffled`: for every task a coin says whose habit is written.
    """

    def __init__(self, name, shuffled=False):
        self.weights, self.device, self.shuffled = SimpleNamespace(name=name), "cpu", shuffled
        self.word = HABITS.get(name.removesuffix("_relative"), "nothing")

    def generate(self, prompts, **_):
        tasks = [prompt[0]["content"] for prompt in prompts]
        coins = [sum(map(ord, task)) % 2 for task in tasks]
        words = [list(HABITS.values())[coin] if self.shuffled else self.word for coin in coins]
        return pd.DataFrame({"text": [f"{word} {word}" for word in words], "n_new": 2, "stopped": True})

    def label_logprobs(self, prompts, labels, **_):
        first, second = np.array([[part.count(self.word) for part in self.answers(p)] for p in prompts]).T
        odds = 2.0 * (first - second) + 1.0
        strength = {"[[A>>B]]": 1.0, "[[A>B]]": 0.5, "[[A=B]]": 0.0, "[[B>A]]": -0.5, "[[B>>A]]": -1.0, "A": 1, "B": 0}
        frame = pd.DataFrame({f"logp_{label}": odds * strength[label] for label in labels})
        digests = [str(sum(map(ord, p[0]["content"]))) for p in prompts]
        frame = frame.assign(in_label_mass=0.9, logsumexp=0.0, n_tokens=1, prompt_digest=digests)
        frame.attrs["run"] = {}
        return frame

    @staticmethod
    def answers(prompt):
        text = prompt[0]["content"]
        between = text.split("[Answer of assistant A]\n")[1].split("\n[Your verdict]")[0]
        return between.split("[Answer of assistant B]\n")

    def made(self, run, *, started, command):
        fields = {"origin": "test", "weights": "none", "dtype": "none", "versions": {}, "hardware": "none"}
        return fields | {"seconds": 0.0, "timed": 0, "date": "2026-01-01", "command": command}


def tables():
    """Tasks of our own instead of the released ones."""
    rng = np.random.default_rng(0)
    tasks = [f"Say {' '.join(rng.choice(WORDS, 2))} {k}." for k in range(60)]
    named = pd.DataFrame({"id": [f"t{k:02}" for k in range(60)], "task": tasks, "answer": "the bus leaves at eleven"})
    parts = (named[:20], named[20:40], named[40:])
    return dict(zip(("learn", "people", "ask"), (part.reset_index(drop=True) for part in parts), strict=True))


@pytest.fixture
def toy(project, toy_folder, monkeypatch):
    return set_up(toy_folder, monkeypatch.setattr, monkeypatch.setitem)


def set_up(folder, setattr, setitem):
    setattr(lab.Run, "tasks", property(lambda self: tables()))
    dpo = replace(FAST, method="dpo", learning_rate=1e-3)
    setitem(lab.TRAINING, "small", {"sft": FAST, "dpo": dpo})

    def record(judge="gen_a", shuffled=False, **options):
        def load(name, *, device):
            return Planted(name, shuffled) if name in HABITS else load_judge(name, device=device)

        given = {**SIZES, "students": str(folder), "methods": "sft", "mixing": "1"} | options
        return lab.record(Planted(judge, shuffled), command="test", load=load, **given)

    return record


def both(record, **options):
    return pd.concat([record(judge, **options).table for judge in HABITS])


def test_students_of_planted_generators_leak_and_those_of_shuffled_ones_do_not(toy, project):
    pair = tuple(HABITS)
    planted = lab.per_question(both(toy), "sft", pair)
    shuffled = lab.per_question(both(toy, shuffled=True, lab="leakage_lab_shuffled"), "sft", pair)
    assert planted.mean() > 1
    assert abs(shuffled.mean()) < 0.5 < planted.mean() / 2
    scores = lab_table(project / "evidence" / "recorded" / "leakage_lab_toy").set_index("condition")
    assert scores["pls"]["sft, games"] > 50
    assert scores["n"]["sft, games"] == 12
    assert scores["low"]["sft, games"] > 0


def test_every_kind_of_condition_makes_students_that_are_judged(toy, project):
    grid = {"methods": "sft,dpo,icl", "mixing": "1,0.5", "relations": "same,inherited,family"}
    grid |= {"relatives": "gen_a=gen_a_relative,gen_b=gen_b_relative", "prompts": "8", "questions": "5"}
    table = toy(**grid).table
    own = {"sft", "sft 50%", "sft inherited", "dpo", "icl", "dpo inherited", "icl inherited"}
    assert set(table["condition"]) == own
    assert table.groupby("condition").size().eq(5 * 3).all()  # two games and a single call for each of 5 questions
    relative = toy("gen_a_relative", **grid).table
    assert set(relative["condition"]) == {"sft family", "dpo family", "icl family"}
    assert set(relative["judge"]) == {"gen_a"}
    assert set(relative["model"]) == {"gen_a_relative"}
    folder = project / "evidence" / "recorded" / "leakage_lab_toy"
    curves = pd.read_parquet(folder / "losses.parquet").groupby("student")["loss"].agg(["first", "last"])
    assert (curves["last"] < curves["first"]).sum() >= len(curves) - 1
    answers = pd.read_parquet(folder / "answers.parquet")
    assert set(answers["condition"]) == own | {"generator"} | set(relative["condition"])
    assert "text" not in answers
    assert answers.query("condition == 'generator'")["named"].mean() == 1


@pytest.mark.parametrize(
    "at", ["train:3", pytest.param("write:1", marks=pytest.mark.slow), pytest.param("judge:1", marks=pytest.mark.slow)]
)
def test_a_kill_at_any_stage_changes_nothing(toy, toy_folder, project, root, at):
    whole = toy()
    kept = project / "evidence" / "recorded" / "leakage_lab_toy"
    files = {path.name: path.read_bytes() for path in kept.glob("*.parquet")}
    killed = project / "evidence" / "recorded" / "leakage_lab_killed"
    code = "import sys; from tests.recipes.test_leakage_lab import die; die(*sys.argv[1:])"
    env = {**os.environ, "REPROLIB_ROOT": str(project), "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    done = subprocess.run([sys.executable, "-c", code, str(toy_folder), at], cwd=root, env=env, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    assert not list(killed.glob("*.json"))
    again = toy(lab="leakage_lab_killed")
    assert again.manifest.rows == whole.manifest.rows
    pd.testing.assert_frame_equal(again.table.assign(study=""), whole.table.assign(study=""))
    for name in ("answers.parquet", "losses.parquet", "texts.parquet"):
        assert (killed / name).read_bytes() == files[name]


def die(folder, at):
    """In a process of its own: run the toy lab, and be killed when a stage has been entered so many times."""
    import transformers

    record = set_up(folder, setattr, lambda table, key, value: table.update({key: value}))
    stage, count = at.split(":")
    left = int(count)

    def entered(*_, **__):
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    where = {
        "train": (transformers.TrainerCallback, "on_step_end"),
        "write": (lab.Run, "answers"),
        "judge": (lab, "prompts"),
    }[stage]
    made = getattr(*where)
    setattr(*where, lambda *a, **k: (made(*a, **k), entered())[0])
    record(lab="leakage_lab_killed")


def test_a_condition_that_diverges_is_left_out_with_a_clear_line(toy, monkeypatch, capsys):
    broken = replace(FAST, method="dpo", learning_rate=1e30)
    monkeypatch.setitem(lab.TRAINING, "small", {"sft": FAST, "dpo": broken})
    table = toy(methods="sft,dpo", prompts="8", questions="5").table
    assert set(table["condition"]) == {"sft"}
    assert "condition dpo is left out: the loss is " in capsys.readouterr().out


def test_answers_are_never_templates():
    odd = "{task} {{ 7 * 7 }} %s {0}"
    (message,) = lab.verdict_prompt(odd, odd, "", ending="games")
    assert message["content"].count(odd) == 2
    assert "(nothing)" in message["content"]


def test_options_that_are_wrong_say_what_is_allowed(toy):
    with pytest.raises(ParameterError, match="did you mean 'methods'"):
        lab.lab_of(method="sft")
    with pytest.raises(ParameterError, match="no method 'rl'"):
        _ = lab.lab_of(lab="leakage_lab_x", methods="rl").cells
    with pytest.raises(ParameterError, match="prompts: examples of each student"):
        lab.lab_of(prompts="many")
    with pytest.raises(ParameterError, match="lab=leakage_lab_mine"):
        lab.lab_of(prompts="7")
    toy(questions="5")
    with pytest.raises(ParameterError, match="was begun with other options"):
        toy(questions="6")


def test_lean_and_verdict_follow_the_labels_and_the_order():
    rows = [
        ("games", 0, [0.7, 0.1, 0.1, 0.05, 0.05], "A"),
        ("games", 1, [0.7, 0.1, 0.1, 0.05, 0.05], "B"),
        ("games", 0, [0.2, 0.2, 0.35, 0.05, 0.2], "tie"),
        ("games", 1, [0.1, 0.1, 0.1, 0.3, 0.4], "A"),
    ]
    table = pd.DataFrame([(arm, order, *np.log(p)) for arm, order, p, _ in rows],
                         columns=["arm", "order", *(f"logp_{label}" for label in lab.FIVE)])  # fmt: skip
    single = pd.DataFrame({"arm": "single", "order": [0, 1], "logp_A": np.log(0.6), "logp_B": np.log(0.2)})
    table = pd.concat([table, single], ignore_index=True)
    assert list(lab.verdict_of(table)) == [*(verdict for *_, verdict in rows), "A", "B"]
    wanted = np.log([0.8 / 0.1, 0.1 / 0.8, 0.4 / 0.25, 0.7 / 0.2, 3, 1 / 3])
    np.testing.assert_allclose(lab.lean(table), wanted)


def test_leakage_by_question_is_free_of_position_and_of_what_both_judges_like():
    """Two judges with 0.4 nats for their own student, 1 for the first place, 0.7 both for student a."""
    rows = []
    for judge, own in (("a", 0.4), ("b", -0.4)):
        for order in (0, 1):
            first = (0.7 + own) * (1 - 2 * order) + 1
            rows.append({"judge": judge, "order": order, "logp_A>B": first, "logp_B>A": 0.0})
    table = pd.DataFrame(rows).assign(
        arm="games", condition="sft", author_a="a", author_b="b", cluster_id="q", pair_id="q"
    )
    table[["logp_A>>B", "logp_B>>A", "logp_A=B", "logp_A", "logp_B"]] = -np.inf, -np.inf, -np.inf, np.nan, np.nan
    assert lab.per_question(table, "sft", ("a", "b"))["q"] == pytest.approx(0.4)
    assert lab.position(table).tolist() == pytest.approx([1, 1])
    assert leakage_log_odds(1.1, 0.3) == pytest.approx(0.4)


@pytest.mark.slow
def test_power_is_what_simulation_finds():
    rng = np.random.default_rng(0)
    n = lab.questions_needed(0.3, 1.2)
    means = rng.normal(0.3, 1.2, size=(4_000, n))
    clear = means.mean(axis=1) - 1.96 * means.std(axis=1, ddof=1) / n**0.5 > 0
    assert clear.mean() == pytest.approx(0.8, abs=0.03)


def test_released_tasks_are_read_in_a_fixed_order(mirror, project):
    run = lab.Run(lab.lab_of())
    assert [len(run.tasks[kind]) for kind in ("learn", "people", "ask")] == [758, 124, 194]
    assert run.tasks["ask"]["id"].is_unique
    learnt = {" ".join(task.lower().split()) for task in run.tasks["learn"]["task"].head(run.lab.prompts)}
    assert not learnt & {" ".join(task.lower().split()) for task in run.tasks["ask"]["task"]}
    assert json.loads((run.folder / "lab.json").read_text())["questions"] == 72


def test_a_plan_counts_what_the_grid_asks():
    """Three conditions of two generators: 4 students and the one by people; 216 pairs in 3 calls."""
    plan = lab.plan().set_index(["step", "model"])
    assert plan["calls"].tolist() == [120, 120, 0, 432, 648, 648, 648]
    trained = plan.loc["training, 5 students"].iloc[0]
    assert trained["prompt_tokens"] == pytest.approx(5 * 3 * 120 * (60 + 80) / 1e6)
    assert plan["billions"].notna().all()


def test_run_shows_the_plan_of_a_chapter_whose_record_takes_models(capsys):
    from reprolib.cli import main

    assert main(["run", "leakage_lab", "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "effect = 0.2" in shown
    assert "training, 5 students" in shown
    assert main(["run", "leakage_main", "--plan"]) == 0
    assert "training" not in capsys.readouterr().out


def test_the_committed_record_is_whole_and_its_verdicts_follow_from_its_labels(root):
    table, manifests = lab.read(root / "evidence" / "recorded" / "leakage_lab")
    assert [m.judge for m in manifests] == [*lab.Lab().generators, lab.THIRD]
    asked = table.groupby(["judge", "condition", "arm"]).agg(
        rows=("order", "size"), questions=("cluster_id", "nunique")
    )
    assert asked["questions"].eq(72).all()
    assert asked["rows"].tolist() == [144, 72] * 9  # both orders of a game, one of a single call
    assert (lab.verdict_of(table) == table["verdict"]).all()
    mass = np.exp(table.filter(regex="^logp_")).sum(axis=1)
    np.testing.assert_allclose(mass, table["in_label_mass"], atol=1e-6)


def test_an_altered_record_is_refused(project):
    folder = project / "evidence" / "recorded" / "leakage_lab"
    path = folder / "smollm2-135m.parquet"
    pd.read_parquet(path).assign(verdict="A").to_parquet(path, index=False)
    with pytest.raises(EvidenceError, match="smollm2-135m is not the table its manifest describes"):
        lab.read(folder)
