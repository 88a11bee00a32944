"""Execute chapters with papermill: validated before a kernel starts, in parallel, skipped when nothing changed."""

import contextlib
import json
import multiprocessing
import os
import platform
import resource
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from reprolib.errors import ChapterError, ParameterError, ReprolibError, pick
from reprolib.evidence import download, published, recipe, recipes
from reprolib.project import digest, files_below, root, write_text
from reprolib.report import ledger, notebooks
from reprolib.report.chapters import CHAPTERS, validate

CPU_LIMIT = 15.0  # CPU-seconds of a chapter of the default profile; side by side on one core it costs half more
LAPTOP = 0.1  # TFLOP/s that two CPU cores sustain
LARGE_GPU = 400.0  # TFLOP/s that one GPU of 80 to 141 GB is assumed to sustain
PLANNED = ("gpu", "paper")  # profiles of models that no chapter runs: they are priced, and recorded on purpose
_STUDIES = {"score": "score_range", "contrastive": "score_range", "overlap": "overlap", "label": "label_bias"}


class Job(NamedTuple):
    """One chapter to execute: its parameters, the ones that differ from the notebook's own, and what it depends on."""

    chapter: str
    parameters: dict[str, Any]
    overrides: dict[str, Any]
    profile: str
    digest: str
    current: bool  # whether the executed notebook was made from exactly these inputs


def _file(folder: str, chapter: str, kind: str = "json") -> Path:
    return root() / folder / f"{chapter}.{kind}"


def plan(chapters: Sequence[str], *, profile: str, overrides: Mapping[str, Any]) -> list[Job]:
    """The jobs for these chapters (none named: all), validated; nothing is run."""
    preset = pick("profile", profile, tomllib.loads((root() / "notebooks" / "profiles.toml").read_text()))
    if profile in PLANNED:
        hint = "see --plan (without -p); record with: reprolib record STUDY MODEL --device cuda, and --shard or --ray"
        raise ParameterError(f"no chapter runs with the profile {profile!r}", hint=hint)
    models = {chapter: pick("chapter", chapter, CHAPTERS) for chapter in chapters or CHAPTERS}
    for name in overrides:
        pick("parameter", name, {field: model for model in models.values() for field in model.model_fields})
    # What every chapter depends on: package, evidence, lock, Python, and which released data is at hand.
    files = [*files_below(root() / "src"), *files_below(root() / "evidence"), root() / "constraints.txt"]
    at_hand = {name: download.at_hand([name]) for name in download.sources()}
    common, jobs = digest(files, platform.python_version(), json.dumps(at_hand)), list[Job]()
    for chapter, model in models.items():
        given = {k: v for k, v in {**preset, **overrides}.items() if k in model.model_fields}
        parameters = validate(chapter, given).model_dump(mode="json")
        inputs = digest([_file("notebooks", chapter, "ipynb")], common, json.dumps(parameters))
        made, results = _file("book/chapters", chapter, "ipynb"), _file("_build/results", chapter)
        current = made.is_file() and results.is_file() and json.loads(results.read_text())["digest"] == inputs
        jobs.append(Job(chapter, parameters, {k: parameters[k] for k in given}, profile, inputs, current))
    return jobs


def show_plan(jobs: Sequence[Job]) -> str:
    """What would run, and every parameter, one a line: name, default, allowed values, meaning; then those given."""
    lines = []
    for job in jobs:
        lines.append(f"{job.chapter}: {'unchanged, would be skipped' if job.current else 'would run'}")
        for name, about in CHAPTERS[job.chapter].model_json_schema()["properties"].items():
            allowed = f" ({about['minimum']:,} to {about['maximum']:,})" if "minimum" in about else ""
            allowed = f" ({', '.join(about['enum'])})" if "enum" in about else allowed
            lines.append(f"  {name} = {about['default']!r}{allowed}: {about['description']}")
        lines += [f"  given: {name} = {value!r}" for name, value in job.overrides.items()]
        if job.chapter in recipes() and hasattr(made := recipe(job.chapter), "plan"):
            lines.append(f"making its record (reprolib record {job.chapter} JUDGE), with the recipe's defaults:")
            lines.append(show_costs(price(made.plan(), tflops=LAPTOP), tflops=LAPTOP))
    return "\n".join(lines)


def costs(chapters: Sequence[str], *, profile: str, tflops: float) -> pd.DataFrame:
    """What the studies of these chapters (none named: all) ask of models in a profile of `PLANNED`, by step and model.

    Tokens in millions; `pflop`: 2 x parameters x tokens, 6 x in training (linear layers; attention adds a few per
    cent); `hours` of that at `tflops` TFLOP/s; `..._shared`: each shared prefix computed once; `memory`: GB of bf16
    weights, in training 16 bytes a parameter (weights, gradients, Adam). NaN: the size is not public.
    """
    passes = published("score_range_models").assign(study="score_range", profile="gpu paper", calls=4 * 1600)
    tokens = {"prompt_tokens": 4 * passes["tokens"], "shared_tokens": 4 * passes["tokens_shared"], "new_tokens": 0.0}
    table = pd.concat([passes.assign(step="coherence, four ranges", **tokens), published("costs")])
    first = {pick("chapter", name, dict.fromkeys(CHAPTERS, name)).split("_")[0] for name in chapters or CHAPTERS}
    table = table[
        table["profile"].str.contains(profile) & table["study"].isin([_STUDIES.get(word, word) for word in first])
    ]
    if table.empty:
        raise ParameterError(f"these chapters ask no model anything in {profile!r}", hint="name none to see all")
    return price(table, tflops=tflops)


def price(table: pd.DataFrame, *, tflops: float) -> pd.DataFrame:
    """Rows of work (study, step, model, billions, calls, tokens), priced as `costs` says; steps that train say so."""
    size, trained = table["billions"].where(table["billions"] > 0), table["step"].str.startswith("training")
    kept = ["study", "step", "model", "calls", "prompt_tokens", "shared_tokens", "new_tokens"]
    table = table[kept].assign(billions=size, memory=size * np.where(trained, 16, 2))
    for kind, read in {"": table["prompt_tokens"], "_shared": table["shared_tokens"]}.items():
        table[f"pflop{kind}"] = np.where(trained, 6, 2) * size * (read + table["new_tokens"])
        table[f"hours{kind}"] = table[f"pflop{kind}"] * 1000 / tflops / 3600
    return table.reset_index(drop=True)


def show_costs(table: pd.DataFrame, *, tflops: float) -> str:
    """The table of `costs` as text, with a total; the total's size and memory are the largest."""
    total = {**table.sum(numeric_only=True, min_count=1), **table[["billions", "memory"]].max()}
    whole = pd.concat([table, pd.DataFrame([{"study": "total", "step": "", "model": "", **total}])])
    style: Any = {"na_rep": "not known", "float_format": "{:,.2f}".format, "formatters": {"calls": "{:,.0f}".format}}
    notes = "Tokens: millions. Memory: GB of bf16 weights; in training, 16 bytes a parameter. Not known: not public.\n"
    notes += f"Hours: these FLOP at {tflops:g} TFLOP/s (a large GPU: 400; two CPU cores: 0.1), nothing else."
    return f"{whole.to_string(index=False, **style)}\n{notes} Totals hold what is known."


def run(jobs: Sequence[Job], *, workers: int = 2, time_limit: float = 600.0) -> list[Job]:
    """Execute the jobs that are not current, and return them; `time_limit` is in seconds a cell.

    Raises ChapterError after all have ended, naming each chapter that failed; the others are kept.
    """
    pending = [job for job in jobs if not job.current]
    failures: list[str] = []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(_execute, job, time_limit): job.chapter for job in pending}
        for future in tqdm(as_completed(futures), total=len(pending), unit="chapter", leave=False, disable=None):
            try:
                tqdm.write(f"{futures[future]}: {future.result():.1f} CPU-seconds")
            except (ReprolibError, RuntimeError) as error:  # RuntimeError: a kernel or process died
                failures.append(f"{futures[future]}: {error}")
                tqdm.write(f"{futures[future]}: failed")
    if failures:
        fine = len(pending) - len(failures)
        raise ChapterError("\n".join(failures), hint=f"{fine} of {len(pending)} chapters are fine")
    return pending


def _execute(job: Job, time_limit: float) -> float:
    """In a process of its own: run one job, gate it and put it in place; returns its CPU-seconds."""
    os.environ.update(OMP_NUM_THREADS="1", PYTHONHASHSEED="0", REPROLIB_ROOT=str(root()))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # kernels chat on stderr
    import papermill

    start, draft = time.monotonic(), _file("_build/drafts", job.chapter, "ipynb")
    draft.parent.mkdir(parents=True, exist_ok=True)
    options = {"kernel_name": "python3", "progress_bar": False, "cwd": root(), "execution_timeout": time_limit}
    try:
        with contextlib.suppress(papermill.exceptions.PapermillExecutionError):  # the gate finds it in the notebook
            papermill.execute_notebook(_file("notebooks", job.chapter, "ipynb"), draft, job.overrides, **options)
    except TimeoutError:
        raise ChapterError(f"a cell was not finished after {time_limit:.0f} s", hint="raise --time-limit") from None
    executed, used = notebooks.read(draft), resource.getrusage(resource.RUSAGE_CHILDREN)
    notebooks.gate(executed, job.chapter)
    cpu = round(used.ru_utime + used.ru_stime, 1)
    if os.environ.get("CI") and job.profile == "default" and cpu > 1.5 * CPU_LIMIT:
        raise ChapterError(f"cost {cpu} CPU-seconds", hint=f"a default chapter may cost {CPU_LIMIT:.0f}: fewer draws?")
    spent = {"seconds": round(time.monotonic() - start, 1), "cpu_seconds": cpu, "memory_mb": used.ru_maxrss // 1024}
    document = {"chapter": job.chapter, "digest": job.digest, "parameters": job.parameters,
                "results": [r.model_dump() for r in ledger.collect(executed)]}  # fmt: skip
    write_text(_file("book/chapters", job.chapter, "ipynb"), notebooks.dump(notebooks.normalise(executed, job.chapter)))
    write_text(_file("_build/timings", job.chapter), json.dumps(spent))
    write_text(_file("_build/results", job.chapter), json.dumps(document, indent=1))  # last: it makes the job current
    return cpu
