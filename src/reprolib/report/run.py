"""Execute chapters with papermill: validated before a kernel starts, in parallel, skipped when nothing changed.

Each chapter runs in a process of its own, so that a hanging or dying kernel can be ended without losing the others;
a chapter's earlier result is replaced only once the new one has passed the gate.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import resource
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprolib.errors import ChapterError, ParameterError, ReprolibError
from reprolib.project import digest_of, files_below, root, write_text
from reprolib.report import ledger, notebooks
from reprolib.report.chapters import CHAPTERS, Parameters, describe, validate

CPU_LIMIT = 15.0  # CPU-seconds that a chapter of the default profile may cost (kernel start included)


@dataclass(frozen=True)
class Job:
    """One chapter to execute: its parameters, the ones that differ from the notebook's own, and what it depends on."""

    chapter: str
    parameters: Parameters
    overrides: dict[str, Any]
    profile: str
    digest: str

    @property
    def source(self) -> Path:
        """The notebook without outputs."""
        return root() / "notebooks" / f"{self.chapter}.ipynb"

    @property
    def executed(self) -> Path:
        """The notebook that the book shows."""
        return root() / "book" / "chapters" / f"{self.chapter}.ipynb"

    @property
    def results(self) -> Path:
        """Results of its claims, with digest, parameters and costs, as JSON."""
        return results_dir() / f"{self.chapter}.json"

    @property
    def current(self) -> bool:
        """Whether the executed notebook was made from exactly these inputs."""
        if not (self.executed.is_file() and self.results.is_file()):
            return False
        return bool(json.loads(self.results.read_text())["digest"] == self.digest)


def results_dir() -> Path:
    """Where results of executed chapters lie."""
    return root() / "_build" / "results"


def profiles() -> dict[str, dict[str, Any]]:
    """Parameters by profile, from `notebooks/profiles.toml`; `about` says what a profile is for."""
    return tomllib.loads((root() / "notebooks" / "profiles.toml").read_text())


def plan(chapters: Sequence[str], *, profile: str, overrides: Mapping[str, Any]) -> list[Job]:
    """The jobs for these chapters (none named: all), validated; nothing is run.

    Raises ParameterError: an unknown chapter or profile, a parameter that none of the chapters has, a bad value.
    """
    known = profiles()
    if profile not in known:
        raise ParameterError(f"no profile {profile!r}", hint=f"allowed: {', '.join(known)}")
    chosen = list(dict.fromkeys(chapters)) or list(CHAPTERS)
    for chapter in chosen:
        validate(chapter, {})
    fields = {name for chapter in chosen for name in CHAPTERS[chapter].model_fields}
    if unknown := [name for name in overrides if name not in fields]:
        validate(chosen[0], {unknown[0]: overrides[unknown[0]]})  # raises, with a suggestion
    common, jobs = _common_digest(), []
    for chapter in chosen:
        given = {**{k: v for k, v in known[profile].items() if k != "about"}, **overrides}
        given = {k: v for k, v in given.items() if k in CHAPTERS[chapter].model_fields}
        parameters = validate(chapter, given)
        typed = {k: v for k, v in parameters.model_dump(mode="json").items() if k in given}
        source = root() / "notebooks" / f"{chapter}.ipynb"
        digest = digest_of([common, chapter.encode(), source.read_bytes(), parameters.model_dump_json().encode()])
        jobs.append(Job(chapter, parameters, typed, profile, digest))
    return jobs


def show_plan(jobs: Sequence[Job]) -> str:
    """What would run, with every parameter, as text."""
    lines = []
    for job in jobs:
        lines += [
            f"{job.chapter}: {'unchanged, would be skipped' if job.current else 'would run'}",
            describe(job.chapter),
        ]
        lines += [f"  given: {name} = {value!r}" for name, value in job.overrides.items()]
    return "\n".join(lines)


def run(jobs: Sequence[Job], *, workers: int = 2, time_limit: float = 600.0) -> list[Job]:
    """Execute the jobs that are not current, and return them.

    Raises ChapterError after all have ended, naming each chapter that failed; the others are kept.
    """
    pending = [job for job in jobs if not job.current]
    failures: list[str] = []
    with _Progress(pending) as progress, ThreadPoolExecutor(max(1, workers)) as pool:
        futures = {pool.submit(_execute, job, time_limit, progress): job for job in pending}
        for future in as_completed(futures):
            try:
                progress.done(futures[future].chapter, f"{future.result():.1f} CPU-seconds")
            except ReprolibError as error:
                failures.append(str(error))
                progress.done(futures[future].chapter, "failed")
    if failures:
        raise ChapterError(
            "\n".join(failures), hint=f"{len(pending) - len(failures)} of {len(pending)} chapters are fine"
        )
    return pending


def _execute(job: Job, time_limit: float, progress: _Progress) -> float:
    """Run one job in a process of its own, gate it and put it in place; returns its CPU-seconds."""
    draft = root() / "_build" / "drafts" / f"{job.chapter}.ipynb"
    draft.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_papermill, args=(job.source, draft, job.overrides, sender), daemon=True)
    start = time.monotonic()
    process.start()
    sender.close()
    outcome: dict[str, Any] = {}
    while "cpu" not in outcome:
        if receiver.poll(0.2):
            try:
                outcome |= receiver.recv()
            except EOFError:
                raise ChapterError(
                    f"{job.chapter}: its process died", hint="out of memory? try fewer --workers"
                ) from None
            progress.cell(job.chapter, outcome.get("cell", 0), outcome.get("cells", 0))
        elif time.monotonic() - start > time_limit:
            process.terminate()  # the kernel notices that its parent is gone and ends too
            raise ChapterError(f"{job.chapter}: not finished after {time_limit:.0f} s", hint="raise --time-limit")
    process.join()
    if outcome["error"]:
        raise ChapterError(f"{job.chapter}: {outcome['error']}", hint=f"see {draft.relative_to(root())}")
    seconds = time.monotonic() - start
    executed = notebooks.read(draft)
    notebooks.gate(executed, job.chapter)
    if job.profile == "default" and outcome["cpu"] > CPU_LIMIT:
        message = f"{job.chapter} cost {outcome['cpu']:.1f} CPU-seconds; a default chapter may cost {CPU_LIMIT:.0f}"
        raise ChapterError(message, hint="fewer draws by default, or a committed result")
    found = ledger.collect(executed)
    document = {"chapter": job.chapter, "digest": job.digest, "parameters": job.parameters.model_dump(mode="json"),
                "results": [r.model_dump() for r in found]}  # fmt: skip
    cost = {"seconds": round(seconds, 1), "cpu_seconds": round(outcome["cpu"], 1), "memory_mb": outcome["memory_mb"]}
    write_text(job.executed, notebooks.dump(notebooks.normalise(executed, job.chapter)))
    write_text(root() / "_build" / "timings" / f"{job.chapter}.json", json.dumps(cost))
    write_text(job.results, json.dumps(document, indent=1))  # last: it is what makes the job current
    draft.unlink()
    return float(outcome["cpu"])


def _papermill(source: Path, target: Path, parameters: dict[str, Any], sender: Any) -> None:
    """In the child process: execute, report each cell and, at the end, the error (or none) and the costs."""
    os.environ.update(OMP_NUM_THREADS="1", PYTHONHASHSEED="0", REPROLIB_ROOT=str(root()))
    log = os.open(target.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, sys.stderr.fileno())  # kernels chat on stderr: kept for the curious, not shown
    import papermill
    from papermill.engines import NBClientEngine, papermill_engines

    class Reporting(NBClientEngine):  # type: ignore[misc]
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
            start = nb_man.cell_start

            def cell_start(cell: Any, cell_index: int, **more: Any) -> Any:
                sender.send({"cell": cell_index, "cells": len(nb_man.nb.cells)})
                return start(cell, cell_index, **more)

            nb_man.cell_start = cell_start
            return super().execute_managed_notebook(nb_man, kernel_name, **options)

    papermill_engines.register("reporting", Reporting)
    error = ""
    try:
        papermill.execute_notebook(
            source, target, parameters, engine_name="reporting", kernel_name="python3", progress_bar=False, cwd=root()
        )
    except papermill.exceptions.PapermillExecutionError as failure:
        error = f"cell {failure.cell_index} raised {failure.ename}: {failure.evalue}"
    except Exception as failure:  # anything else must reach the parent as a message too
        error = f"{type(failure).__name__}: {failure}"
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    sender.send({"error": error, "cpu": usage.ru_utime + usage.ru_stime, "memory_mb": usage.ru_maxrss // 1024})


class _Progress:
    """A bar over all cells in a terminal, a line a chapter elsewhere."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._interactive = sys.stderr.isatty()
        self._cells = {job.chapter: sum(1 for _ in notebooks.read(job.source).cells) for job in jobs}
        self._at = dict.fromkeys(self._cells, 0)
        self._bar: Any = None

    def __enter__(self) -> _Progress:
        if self._interactive and self._cells:
            from tqdm import tqdm

            self._bar = tqdm(total=sum(self._cells.values()), unit="cell", leave=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def cell(self, chapter: str, at: int, _cells: int) -> None:
        if self._bar is not None and at > self._at[chapter]:
            self._bar.update(at - self._at[chapter])
            self._at[chapter] = at
            self._bar.set_description(chapter)

    def done(self, chapter: str, how: str) -> None:
        self.cell(chapter, self._cells[chapter], 0)
        line = f"{chapter}: {how}"
        if self._bar is not None:
            self._bar.write(line)
        else:
            print(line, flush=True)


def _common_digest() -> bytes:
    """What every chapter depends on: package, evidence, lock, Python, and which released data is at hand."""
    from reprolib.evidence import download

    base = root()
    files = sorted(
        f
        for f in [*files_below(base / "src"), *files_below(base / "evidence"), base / "constraints.txt"]
        if f.is_file()
    )
    state = {name: download.at_hand([name]) for name in download.sources()}
    parts = [part for f in files for part in (str(f.relative_to(base)).encode(), f.read_bytes())]
    return digest_of([*parts, platform.python_version().encode(), json.dumps(state).encode()]).encode()
