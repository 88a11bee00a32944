"""The leakage lab: generators write answers, students learn them, the generators judge the students.

The experiment of Li et al. (arXiv 2502.01534, section 4) from end to end, with models of any size. A *condition* is one
way to make students (method, share of the teacher's text, relation, base model); in it each generator teaches one
student, on the same tasks, and the students of two generators are a pair. Tasks to learn from are AlpacaEval's, tasks
to be asked self-instruct's for users (all of which AlpacaEval took in: those learnt are not asked), text by people
self-instruct's seed tasks; texts of others stay out of what is recorded. Every answer is in the store, every student a
folder beside it: whatever is stopped goes on where it was.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pooch
from filelock import FileLock
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from scipy import stats
from tqdm import tqdm

from reprolib.errors import EvidenceError, ParameterError, pick
from reprolib.evidence import PAIRWISE, check_table, download
from reprolib.evidence.recorded import Manifest, Record, ask, store_folder, write_record
from reprolib.inference import JudgeError, Store, load_judge
from reprolib.inference.weights import resolve
from reprolib.metrics.leakage import leakage_log_odds
from reprolib.metrics.style import predict_author, style_counts
from reprolib.project import evidence_dir, write_text
from reprolib.training import PAPER, Settings, TrainingError, student_prompt, train

if TYPE_CHECKING:
    from reprolib.inference.judge import Judge

STUDY = "leakage_lab"
THIRD = "qwen2.5-coder-0.5b"  # the third judge of what this project recorded
SOURCES = ("leakage_gemini_judgments", "instruct_seed_tasks", "instruct_user_tasks")
FIVE = {
    "A>>B": 2,
    "A>B": 1,
    "A=B": 0,
    "B>A": -1,
    "B>>A": -2,
}  # labels of the games: how far they lean to the first text
TWO = ("A", "B")
_SMALL = Settings(learning_rate=2e-4, batch=8, micro_batch=8, max_length=384, lora_rank=16)
TRAINING = {"small": {"sft": _SMALL, "dpo": replace(_SMALL, method="dpo", learning_rate=5e-5)}, "paper": PAPER}
BILLIONS = {"qwen2.5-coder-1.5b": 1.54, "qwen2.5-coder-0.5b": 0.49, "smollm2-135m": 0.135, "gemma-3-270m": 0.268}
_TASK, _VERDICT = 60, 130  # tokens: a task with its frame, the frame of a verdict
SHOWN = 3  # questions whose answers are recorded as text
Load = Callable[..., "Judge"]
Names = Annotated[tuple[str, ...], BeforeValidator(lambda x: tuple(x.split(",")) if isinstance(x, str) else x)]
Shares = Annotated[tuple[float, ...], BeforeValidator(lambda x: x.split(",") if isinstance(x, str) else x)]


class Cell(NamedTuple):
    """How a student is made; `mixing`: share of its examples that its teacher wrote, the rest is by people."""

    student: str
    method: Literal["sft", "dpo", "icl"] = "sft"
    mixing: float = 1.0
    relation: Literal["same", "inherited", "family"] = "same"

    def name(self, first: str) -> str:
        """The condition's name, such as "sft 50%"; the base model is named if it is not the `first`."""
        parts = [self.method, f"{self.mixing:.0%}" if self.mixing < 1 else "", self.relation.replace("same", "")]
        return " ".join(filter(None, [*parts, self.student if self.student != first else ""]))


class Lab(BaseModel, frozen=True, extra="forbid"):
    """A grid of conditions and its sizes. The defaults are what this project recorded."""

    lab: str = Field(
        default=STUDY, pattern=r"^leakage_lab\w*$", description="where it is kept, under evidence/recorded"
    )
    generators: Names = Field(
        default=("qwen2.5-coder-1.5b", "smollm2-135m"), min_length=2, description="two or more models"
    )
    students: Names = Field(default=("gemma-3-270m",), description="base models")
    methods: Names = Field(default=("sft", "icl"), description="sft, dpo, icl")
    mixing: Shares = Field(default=(1.0, 0.5), description="shares of the teacher's text, 0 to 1, for sft")
    relations: Names = Field(default=("same",), description="same, inherited, family")
    relatives: Names = Field(default=(), description="judges of the relation family, as generator=model")
    training: Literal["small", "paper"] = Field(default="small", description="settings of the training")
    prompts: int = Field(default=120, ge=5, description="examples of each student")
    questions: int = Field(default=72, ge=5, description="tasks on which students are judged")
    tokens: int = Field(default=80, ge=1, description="most tokens of an answer")
    demonstrations: int = Field(default=4, ge=1, description="answers of the teacher in the prompt of icl")
    temperature: float = Field(default=0.7, ge=0, description="at which generators write; students answer greedily")
    seed: int = 20250206

    @cached_property
    def cells(self) -> list[Cell]:
        """The grid, without what makes no sense: mixing belongs to sft, and to the generator's own text."""
        for name, allowed in {"methods": ("sft", "dpo", "icl"), "relations": ("same", "inherited", "family")}.items():
            for given in getattr(self, name):
                pick(name[:-1], given, dict.fromkeys(allowed))
        grid = product(self.students, self.methods, self.mixing, self.relations)
        cells = [Cell(*cell) for cell in grid]  # type: ignore[arg-type]
        return [c for c in cells if c.mixing == max(self.mixing) or (c.method == "sft" and c.relation == "same")]


def lab_of(**options: Any) -> Lab:
    """The lab that options describe, text or not; ParameterError names what is allowed."""
    for name in options:
        pick("option", name, Lab.model_fields)
    try:
        made = Lab(**options)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        about = Lab.model_fields[name].description
        raise ParameterError(f"{name} is {first['input']!r}: {first['msg']}", hint=f"{name}: {about}") from None
    if made.lab == STUDY and made != Lab():
        hint = f"give it a name of its own, such as lab={STUDY}_mine"
        raise ParameterError(f"{STUDY} is the lab of the default options", hint=hint)
    return made


class Run:
    """One lab being run: what its models write, and its students, each made once and then found again."""

    def __init__(self, lab: Lab, *, load: Load = load_judge, device: str = "cpu", progress: bool = False) -> None:
        self.lab, self.device, self.progress = lab, device, progress
        self.folder = store_folder(lab.lab)
        self.store = Store(self.folder)
        self._load, self.models = load, dict[str, Any]()
        self.failed, self.losses = dict[str, str](), dict[str, pd.DataFrame]()  # by condition; by student
        described, text = self.folder / "lab.json", lab.model_dump_json(indent=1)
        if described.is_file() and described.read_text() != text:
            message = f"{lab.lab} was begun with other options, which {described.name} in its store holds"
            raise ParameterError(message, hint=f"give those, or another name, such as lab={lab.lab}_2")
        write_text(described, text)

    def model(self, name: str) -> Judge:
        """A generator or judge, loaded once."""
        if name not in self.models:
            self.models[name] = self._load(name, device=self.device)
        return self.models[name]

    @cached_property
    def tasks(self) -> dict[str, pd.DataFrame]:
        """`learn`, `people` and `ask`: tables of id, task and, for people's, answer, each in a fixed random order."""
        paths = download.fetch(SOURCES)
        learn = json.loads(paths[SOURCES[0]].read_text())
        tables = {"learn": pd.DataFrame({"task": [row["instruction"] for row in learn]}).assign(answer="")}
        for kind, source in (("people", SOURCES[1]), ("ask", SOURCES[2])):
            rows = [json.loads(line) for line in paths[source].read_text().splitlines()]
            rows = [row for row in rows if not row.get("is_classification")]
            first = [row["instances"][0] for row in rows]
            task = ["\n\n".join(filter(None, [r["instruction"], i["input"]])) for r, i in zip(rows, first, strict=True)]
            tables[kind] = pd.DataFrame({"task": task, "answer": [i["output"] for i in first]})
        needed, rng = {"learn": self.lab.prompts, "people": 0, "ask": self.lab.questions}, np.random.default_rng(7)
        for kind, table in tables.items():
            table.insert(0, "id", [f"{kind}{k:03}" for k in range(len(table))])
            words = table[["task", "answer"]].map(lambda text: len(text.split()))
            fits = table[(words["task"] <= 80) & ((words["answer"] <= 100) | (kind == "ask"))]
            fits = fits.loc[rng.permutation(fits.index)]
            if kind == "ask":  # AlpacaEval took these in: a student must not have learnt what it is asked
                fits = fits[~fits["task"].isin(tables["learn"]["task"].head(self.lab.prompts))]
            tables[kind] = fits.reset_index(drop=True)
            if len(fits) < needed[kind]:
                hint = f"give at most {len(fits)}"
                raise ParameterError(f"there are no {needed[kind]} tasks to {kind}", hint=hint)
        return tables

    def written(self, teacher: str, cell: Cell) -> pd.DataFrame:
        """The teacher's answers to the tasks to learn: columns id, task, text. Inherited: its first student's."""
        rows = self.tasks["learn"].head(self.lab.prompts)
        how = {"temperature": self.lab.temperature, "seed": self.lab.seed}
        if cell.relation == "inherited":
            first = cell._replace(method="sft", mixing=1.0, relation="same")
            writer = self._load(str(self.student(teacher, first)), device=self.device)
            return rows.assign(text=self._texts(writer, [student_prompt(task) for task in rows["task"]], **how))
        return rows.assign(text=self._texts(self.model(teacher), [_chat(task) for task in rows["task"]], **how))

    def student(self, teacher: str, cell: Cell) -> Path:
        """The folder of a student's weights; trained now if it is not there. TrainingError, as `training.train`."""
        if cell.relation == "family":  # a matter of the judge alone
            cell = cell._replace(relation="same")
        people = cell._replace(method="sft", mixing=0.0, relation="same")
        if cell.method == "icl":
            return self.student("", people)  # what differs between the teachers stands in the prompt
        base = self.student("", people) if cell.method == "dpo" else resolve(cell.student).folder
        examples = self.preferences(teacher, people) if cell.method == "dpo" else self.examples(teacher, cell)
        folder = self.folder / "students" / "_".join([*cell.name("").split(), teacher or "people"]).replace("/", "-")
        settings = replace(TRAINING[self.lab.training][cell.method], seed=self.lab.seed)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):  # two judges may run at once, and need the same students
            losses = train(base, examples, folder, settings, device=self.device, progress=self.progress)
        self.losses[f"{cell.name(self.lab.students[0])}, {teacher}" if teacher else "people"] = losses
        return folder

    def examples(self, teacher: str, cell: Cell) -> pd.DataFrame:
        """What an SFT student learns: `prompts` rows of prompt and completion, the teacher's share first."""
        people, own = self.tasks["people"], round(cell.mixing * self.lab.prompts)
        if len(people) < (filler := self.lab.prompts - own):
            hint = f"give prompts=N so that at most {len(people)} of N are by people"
            raise ParameterError(f"there are no {filler} answers by people", hint=hint)
        rows = people.head(filler).rename(columns={"answer": "text"})
        if own:
            rows = pd.concat([self.written(teacher, cell).head(own), rows])
        return pd.DataFrame({"prompt": [student_prompt(task) for task in rows["task"]], "completion": rows["text"]})

    def preferences(self, teacher: str, people: Cell) -> pd.DataFrame:
        """What a DPO student learns: which of two answers of its own its teacher prefers, both orders together."""
        rows = self.tasks["learn"].head(self.lab.prompts)
        writer = self._load(str(self.student("", people)), device=self.device)
        asked = [student_prompt(task) for task in rows["task"]]
        one, two = (self._texts(writer, asked, temperature=1.0, seed=self.lab.seed + k) for k in (1, 2))
        prompts = [
            verdict_prompt(task, *pair[::step], ending="choose")
            for task, pair in zip(rows["task"], zip(one, two, strict=True), strict=True)
            for step in (1, -1)
        ]
        scores = self.model(teacher).label_logprobs(prompts, TWO, store=self.store, min_mass=0, progress=self.progress)
        lean = (scores["logp_A"] - scores["logp_B"]).to_numpy().reshape(-1, 2) @ [1, -1]
        pairs = [pair if odds >= 0 else pair[::-1] for pair, odds in zip(zip(one, two, strict=True), lean, strict=True)]
        table = pd.DataFrame(pairs, columns=["chosen", "rejected"]).assign(prompt=asked)
        return table[table["chosen"] != table["rejected"]]

    def answers(self, teacher: str, cell: Cell) -> pd.DataFrame:
        """What a student answers to the questions: columns id, task, text, n_new (tokens), stopped."""
        rows = self.tasks["ask"].head(self.lab.questions)[["id", "task"]]
        shown: list[tuple[str, str]] = []
        if cell.method == "icl":
            taught = self.written(teacher, cell).head(self.lab.demonstrations)
            shown = list(zip(taught["task"], taught["text"], strict=True))
        model = self._load(str(self.student(teacher, cell)), device=self.device)
        said = self._write(model, [student_prompt(task, shown) for task in rows["task"]])
        # A base model that was shown examples goes on with the next one: what follows the frame is no answer.
        text = said["text"].str.split("\n### Task").str[0].str.strip()
        return rows.assign(text=text, n_new=said["n_new"], stopped=said["stopped"] | (text != said["text"].str.strip()))

    def made(self, *, first: str = "") -> dict[tuple[str, str], pd.DataFrame]:
        """The answers of every student, by condition and teacher, of teacher `first` before the others'.

        A condition that fails says so, is kept in `failed` with the reason, and is left out.
        """
        teachers = sorted(self.lab.generators, key=lambda teacher: teacher != first)  # others may run at the same time
        found: dict[tuple[str, str], pd.DataFrame] = {}
        for cell in self.lab.cells:
            name = cell.name(self.lab.students[0])
            try:
                found |= {(name, teacher): self.answers(teacher, cell) for teacher in teachers}
            except (TrainingError, JudgeError) as error:
                if isinstance(error, JudgeError) and "out of memory" not in str(error):
                    raise
                self.failed[name] = str(error)
                tqdm.write(f"condition {name} is left out: {error}")
        if not found:
            raise EvidenceError("no student could be made", hint="; ".join(sorted(set(self.failed.values()))))
        return found

    def _texts(self, model: Judge, prompts: Sequence[Any], **how: Any) -> list[str]:
        return [text.strip() for text in self._write(model, prompts, **how)["text"]]

    def _write(self, model: Judge, prompts: Sequence[Any], **how: Any) -> pd.DataFrame:
        common: dict[str, Any] = {"store": self.store, "progress": self.progress, "truncate": True}
        return model.generate(prompts, max_new_tokens=self.lab.tokens, **common, **how)


def record(judge: Judge, *, command: str, load: Load = load_judge, **options: Any) -> Record:
    """Make what is missing of the lab, let `judge` play its games, and write its record; options: the fields of `Lab`.

    Columns beside those of `pairwise`: arm "games" (two orders, five labels) or "single" (one call, two labels, order
    drawn once), `logp_` of each label as a whole string, in_label_mass; the verdict is the likeliest label's. The judge
    of a relative stands in the column judge as the generator, in model as itself. Beside the record lie the answers'
    numbers, loss curves and a few answers as text.
    """
    lab, name = lab_of(**options), judge.weights.name
    related = {model: generator for generator, model in (pair.split("=") for pair in lab.relatives)}
    run = Run(lab, load=load, device=judge.device, progress=True)
    run.models[name] = judge
    answers = run.made(first=name)
    _keep_numbers(run, answers)
    asked = prompts({c: t for c, t in answers.items() if (" family" in c[0]) == (name in related)}, lab)
    if asked.empty:
        hint = "relations=family has those of relatives=GENERATOR=MODEL; the others are for the rest"
        raise ParameterError(f"{name} has nothing to judge", hint=hint)
    tables, made = [], dict[str, Any]()
    for arm, labels in {"games": [f"[[{label}]]" for label in FIVE], "single": list(TWO)}.items():
        table, new = ask(judge, asked[asked["arm"] == arm], labels, study=lab.lab, command=command)
        tables.append(table.rename(columns=lambda column: column.replace("[[", "").replace("]]", "")))
        made |= new | {field: round(new[field] + made.get(field, 0), 1) for field in ("seconds", "timed")}
    table = pd.concat(tables, ignore_index=True)
    about = {"judge": related.get(name, name), "model": name, "prompt_digest": table["prompt_digest"].str[:16]}
    return write_record(table.assign(verdict=verdict_of(table), **about), PAIRWISE, **made)


def prompts(answers: dict[tuple[str, str], pd.DataFrame], lab: Lab) -> pd.DataFrame:
    """What a judge is asked: columns of `pairwise`, and `prompt`; "games" in both orders, "single" in one."""
    drawn = np.random.default_rng(lab.seed).integers(2, size=lab.questions)
    rows = []
    for condition in dict.fromkeys(name for name, _ in answers):
        for one, two in combinations(lab.generators, 2):
            both = answers[condition, one].merge(answers[condition, two], on=["id", "task"], suffixes=("_a", "_b"))
            for (at, row), arm, order in product(enumerate(both.itertuples()), ("games", "single"), (0, 1)):
                if arm == "single" and order != drawn[at]:
                    continue
                shown = (row.text_b, row.text_a) if order else (row.text_a, row.text_b)
                names = {"pair_id": f"{condition}:{row.id}", "cluster_id": row.id, "condition": condition, "arm": arm}
                names |= {"order": order, "author_a": one, "author_b": two}
                rows.append(names | {"prompt": verdict_prompt(row.task, *shown, ending=arm)})
    return pd.DataFrame(rows)


def verdict_prompt(task: str, first: str, second: str, *, ending: str) -> list[dict[str, str]]:
    """The chat that asks for a verdict on two answers; texts are put in as they are, whatever they hold."""
    words = tomllib.loads((evidence_dir() / "prompts" / "leakage_lab.toml").read_text())
    body = words["body"].lstrip().format(task=task, first=first or "(nothing)", second=second or "(nothing)")
    return _chat(body + words[ending])


def verdict_of(table: pd.DataFrame) -> Any:
    """The verdict of each row, "A", "B" (the texts, whatever the order) or "tie": that of the likeliest label."""
    labels = table[[f"logp_{label}" for label in FIVE]].to_numpy()
    games = np.sign([*FIVE.values()])[np.nan_to_num(labels, nan=-np.inf).argmax(axis=1)] * (1 - 2 * table["order"])
    side = np.where(table["arm"] == "games", games, np.sign(lean(table)))
    return np.select([side > 0, side < 0], ["A", "B"], "tie")


def lean(table: pd.DataFrame) -> Any:
    """How far a row leans to text A, in nats: log-odds of the labels that prefer it against those that prefer B."""
    five = {label: table[f"logp_{label}"] for label in FIVE}
    with np.errstate(invalid="ignore"):  # the single calls have none of the five
        games = np.logaddexp(five["A>>B"], five["A>B"]) - np.logaddexp(five["B>>A"], five["B>A"])
    first = np.where(table["arm"] == "games", games, table["logp_A"] - table["logp_B"])
    return first * (1 - 2 * table["order"].to_numpy())


def read(folder: Path) -> tuple[pd.DataFrame, list[Manifest]]:
    """The records of a lab, one below the other, and how each was made; generators' before other judges'.

    EvidenceError: there is none, or a table is not the one that its manifest describes.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        hint = "give a folder that reprolib record leakage_lab wrote, under evidence/recorded"
        raise EvidenceError(f"lab={str(folder)!r} holds no record", hint=hint)
    found = [(pd.read_parquet(p.with_suffix(".parquet")), Manifest(**json.loads(p.read_text()))) for p in paths]
    for path, (table, manifest) in zip(paths, found, strict=True):
        check_table(table, PAIRWISE, origin=manifest.judge)
        if pooch.file_hash(path.with_suffix(".parquet")) != manifest.sha256:
            raise EvidenceError(f"{path.stem} is not the table its manifest describes", hint="restore both")
    teachers = [*found[0][0]["author_a"].unique(), *found[0][0]["author_b"].unique()]
    found.sort(key=lambda pair: (pair[1].judge not in teachers, pair[1].judge))
    return pd.concat([table for table, _ in found], ignore_index=True), [manifest for _, manifest in found]


def design(folder: Path) -> pd.DataFrame:
    """Who did what in a lab, and how often: columns who, what, how many, size."""
    answers, losses = (pd.read_parquet(folder / f"{name}.parquet") for name in ("answers", "losses"))
    rows = []
    for (condition, teacher), own in answers.groupby(["condition", "teacher"], sort=False):
        who, what = (
            (teacher, "writes") if condition == "generator" else (f"{condition} student of {teacher}", "answers")
        )
        rows.append((who, what, f"{len(own)} texts", f"{own['words'].mean():.0f} words on average"))
    for student, curve in losses.groupby("student", sort=False):
        rows.append((student, "is trained", f"{len(curve)} steps", f"{curve['epoch'].max():.0f} epochs"))
    for manifest in read(folder)[1]:
        size = f"{manifest.dtype}, {manifest.seconds / 60:.0f} minutes for {manifest.timed:.0f} of them"
        rows.append((manifest.judge, "judges", f"{manifest.rows} prompts", size))
    return pd.DataFrame(rows, columns=["who", "what", "how many", "size"])


def plan(**options: Any) -> pd.DataFrame:
    """What a lab asks of its models, before anything runs: rows for `report.run.price`, tokens in millions.

    Lengths are assumed: a task of `_TASK` tokens with its frame, and answers that use all of their limit.
    """
    lab = lab_of(**options)
    answer, cells, k = _TASK + lab.tokens, len(lab.cells), len(lab.generators)
    tuned = sum(c.method != "icl" for c in lab.cells if c.relation != "family") * k
    people = any(c.method != "sft" for c in lab.cells)
    rows = [
        (f"writing, {name}", name, lab.prompts, lab.prompts * _TASK, lab.prompts * lab.tokens)
        for name in lab.generators
    ]
    epochs = TRAINING[lab.training]["sft"].epochs
    for base in lab.students:
        trained = (tuned // len(lab.students) + people) * epochs * lab.prompts * answer
        rows.append((f"training, {tuned // len(lab.students) + people} students", base, 0, trained, 0))
        shown = [c.method == "icl" for c in lab.cells if c.student == base]
        calls = len(shown) * k * lab.questions
        read = k * lab.questions * sum(_TASK + icl * lab.demonstrations * answer for icl in shown)
        rows.append(("students' answers", base, calls, read, calls * lab.tokens))
    calls = cells * math.comb(k, 2) * lab.questions * 3
    judges = [*lab.generators, THIRD]
    rows += [("games and single calls", name, calls, calls * (_VERDICT + _TASK + 2 * lab.tokens), 0) for name in judges]
    table = pd.DataFrame(rows, columns=["step", "model", "calls", "prompt_tokens", "new_tokens"])
    table[["prompt_tokens", "new_tokens"]] /= 1e6
    return table.assign(study=STUDY, shared_tokens=table["prompt_tokens"], billions=table["model"].map(BILLIONS))


def per_question(table: pd.DataFrame, condition: str, pair: tuple[str, str], judges: tuple[str, str] = ("", "")) -> Any:
    """Leakage in nats, a value a question: `metrics.leakage.leakage_log_odds` of the games, averaged over both orders.

    `table`: records of several judges, one below the other. `judges` stand for the teachers of the `pair`; by default
    they are the teachers. Questions that one of them was not asked in both orders are left out.
    """
    judges = (judges[0] or pair[0], judges[1] or pair[1])
    asked = table[(table["arm"] == "games") & (table["condition"] == condition)]
    asked = asked[(asked["author_a"] == pair[0]) & (asked["author_b"] == pair[1])]
    wide = asked.assign(lean=lean(asked)).pivot(index="cluster_id", columns=["judge", "order"], values="lean")
    margins = [wide[judge][0].add(wide[judge][1]) / 2 for judge in judges]
    return pd.Series(leakage_log_odds(*margins), index=wide.index).dropna()


def position(table: pd.DataFrame) -> Any:
    """How far each judge leans to the text shown first, in nats: a value a pair, of both orders of a game."""
    games = table[table["arm"] == "games"]
    games = games.assign(first=lean(games) * (1 - 2 * games["order"]))
    return games.groupby(["judge", "pair_id"])["first"].mean()


def power(effect: Any, sd: float, questions: Any) -> Any:
    """Chance (0 to 1) that a 95 % interval over `questions` lies above 0, for a mean `effect` and an SD a question."""
    return stats.norm.cdf(np.asarray(effect) * np.sqrt(questions) / sd - stats.norm.ppf(0.975))


def questions_needed(effect: float, sd: float, *, chance: float = 0.8) -> int:
    """The fewest questions at which `power` reaches `chance`.

    >>> questions_needed(0.5, 1.0), round(float(power(0.5, 1.0, 32)), 2)
    (32, 0.81)
    """
    return math.ceil(((stats.norm.ppf(0.975) + stats.norm.ppf(chance)) * sd / effect) ** 2)


def _keep_numbers(run: Run, answers: dict[tuple[str, str], pd.DataFrame]) -> None:
    """Write what is counted in the answers, the loss curves, and the answers to the first `SHOWN` questions.

    The texts that generators wrote for the students are the condition "generator". `named`: whether a classifier
    names the teacher of an answer, trained on the answers of the same condition to other questions.
    """
    cell, teachers = Cell(run.lab.students[0]), run.lab.generators
    tables = {("generator", t): run.written(t, cell).assign(n_new=0, stopped=True) for t in teachers} | answers
    numbers = []
    for condition in dict.fromkeys(name for name, _ in tables):
        rows = pd.concat([tables[condition, t].assign(condition=condition, teacher=t) for t in teachers])
        rows = rows.reset_index(drop=True)
        counts = style_counts(rows["text"].tolist()).assign(words=rows["text"].str.split().str.len())
        named = predict_author(rows["text"].tolist(), rows["teacher"].tolist(), rows["id"].tolist())
        ids = ["condition", "teacher", "id", "n_new", "stopped"]
        numbers.append(pd.concat([rows[ids], counts], axis=1).assign(named=named))
    folder = evidence_dir() / "recorded" / run.lab.lab
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat(numbers, ignore_index=True).to_parquet(folder / "answers.parquet", index=False)
    curves = pd.concat([run.losses[name].assign(student=name) for name in sorted(run.losses)])
    curves.to_parquet(folder / "losses.parquet", index=False)
    shown = [t.head(SHOWN).assign(condition=c, teacher=teacher) for (c, teacher), t in answers.items()]
    pd.concat(shown)[["condition", "teacher", "id", "text"]].to_parquet(folder / "texts.parquet", index=False)


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
