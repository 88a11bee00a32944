"""Execute chapters with papermill: validated before a kernel starts, in parallel, skipped when nothing changed.

Each chapter runs in a process of its own, so that a hanging or dying kernel can be ended without losing the others;
a chapter's earlier result is replaced only once the new one has passed the gate.
"""

from __future__ import annotations

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
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprolib.errors import ChapterError, ParameterError, ReprolibError
from reprolib.project import digest_of, digest_of_files, files_below, root, write_text
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

    def file(self, folder: str, kind: str) -> Path:
        """The chapter's file in a folder of the project, such as its results in `_build/results`, kind `json`."""
        return root() / folder / f"{self.chapter}.{kind}"

    @property
    def current(self) -> bool:
        """Whether the executed notebook was made from exactly these inputs."""
        results = self.file("_build/results", "json")
        made = results.is_file() and self.file("book/chapters", "ipynb").is_file()
        return made and bool(json.loads(results.read_text())["digest"] == self.digest)


def plan(chapters: Sequence[str], *, profile: str, overrides: Mapping[str, Any]) -> list[Job]:
    """The jobs for these chapters (none named: all), validated; nothing is run.

    Raises ParameterError: an unknown chapter or profile, a parameter that none of the chapters has, a bad value.
    """
    known = tomllib.loads((root() / "notebooks" / "profiles.toml").read_text())
    if profile not in known:
        raise ParameterError(f"no profile {profile!r}", hint=f"allowed: {', '.join(known)}")
    chosen = list(dict.fromkeys(chapters)) or list(CHAPTERS)
    fields = {name for chapter in chosen for name in type(validate(chapter, {})).model_fields}
    if unknown := [name for name in overrides if name not in fields]:
        validate(chosen[0], {unknown[0]: overrides[unknown[0]]})  # raises, with a suggestion
    common, jobs = _common_digest(), []
    for chapter in chosen:
        given = {k: v for k, v in {**known[profile], **overrides}.items() if k in CHAPTERS[chapter].model_fields}
        parameters = validate(chapter, given)
        source = digest_of_files([root() / "notebooks" / f"{chapter}.ipynb"])
        digest = digest_of(part.encode() for part in (common, source, parameters.model_dump_json()))
        jobs.append(Job(chapter, parameters, parameters.model_dump(mode="json", include=set(given)), profile, digest))
    return jobs


def show_plan(jobs: Sequence[Job]) -> str:
    """What would run, with every parameter, as text."""
    lines = []
    for job in jobs:
        state = "unchanged, would be skipped" if job.current else "would run"
        lines += [f"{job.chapter}: {state}", describe(job.chapter)]
        lines += [f"  given: {name} = {value!r}" for name, value in job.overrides.items()]
    return "\n".join(lines)


def run(jobs: Sequence[Job], *, workers: int = 2, time_limit: float = 600.0) -> list[Job]:
    """Execute the jobs that are not current, and return them; a bar in a terminal, a line a chapter elsewhere.

    Raises ChapterError after all have ended, naming each chapter that failed; the others are kept.
    """
    from tqdm import tqdm

    pending = [job for job in jobs if not job.current]
    failures: list[str] = []
    bar = tqdm(total=len(pending), unit="chapter", leave=False, disable=None)
    with bar, ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(_execute, job, time_limit): job.chapter for job in pending}
        for future in as_completed(futures):
            try:
                bar.write(f"{futures[future]}: {future.result():.1f} CPU-seconds")
            except ReprolibError as error:
                failures.append(str(error))
                bar.write(f"{futures[future]}: failed")
            bar.update()
    if failures:
        fine = f"{len(pending) - len(failures)} of {len(pending)} chapters are fine"
        raise ChapterError("\n".join(failures), hint=fine)
    return pending


def _execute(job: Job, time_limit: float) -> float:
    """Run one job in a process of its own, gate it and put it in place; returns its CPU-seconds."""
    start = time.monotonic()
    draft, log, cost = (job.file("_build/drafts", kind) for kind in ("ipynb", "log", "json"))
    draft.parent.mkdir(parents=True, exist_ok=True)
    cost.unlink(missing_ok=True)
    work = (job.file("notebooks", "ipynb"), draft, log, cost, job.overrides)
    process = multiprocessing.get_context("spawn").Process(target=_papermill, args=work, daemon=True)
    process.start()
    process.join(time_limit)
    if process.is_alive():
        process.terminate()  # the kernel notices that its parent is gone and ends too
        raise ChapterError(f"{job.chapter}: not finished after {time_limit:.0f} s", hint="raise --time-limit")
    if not cost.is_file():
        last = log.read_text().strip().splitlines()[-1:] or ["out of memory? try fewer --workers"]
        raise ChapterError(f"{job.chapter}: its process died", hint=last[0])
    spent = {"seconds": round(time.monotonic() - start, 1), **json.loads(cost.read_text())}
    executed = notebooks.read(draft)
    notebooks.gate(executed, job.chapter)
    if job.profile == "default" and spent["cpu_seconds"] > CPU_LIMIT:
        message = f"{job.chapter} cost {spent['cpu_seconds']} CPU-seconds; a default chapter may cost {CPU_LIMIT:.0f}"
        # Chapters side by side on one core's threads cost up to half more than alone; a reader's slow machine more.
        if os.environ.get("CI") and spent["cpu_seconds"] > 1.5 * CPU_LIMIT:
            raise ChapterError(message, hint="fewer draws by default, or a committed result")
        print(f"note: {message}")
    document = {"chapter": job.chapter, "digest": job.digest, "parameters": job.parameters.model_dump(mode="json"),
                "results": [r.model_dump() for r in ledger.collect(executed)]}  # fmt: skip
    finished = notebooks.normalise(executed, job.chapter)
    write_text(job.file("book/chapters", "ipynb"), notebooks.dump(finished))
    write_text(job.file("_build/timings", "json"), json.dumps(spent))
    write_text(job.file("_build/results", "json"), json.dumps(document, indent=1))  # last: it makes the job current
    return float(spent["cpu_seconds"])


def _papermill(source: Path, draft: Path, log: Path, cost: Path, parameters: dict[str, Any]) -> None:
    """In the child process: execute, then write what it cost. A cell's error stays in the notebook, for the gate."""
    os.environ.update(OMP_NUM_THREADS="1", PYTHONHASHSEED="0", REPROLIB_ROOT=str(root()))
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())  # kernels chat on stderr
    import papermill

    with contextlib.suppress(papermill.exceptions.PapermillExecutionError):
        papermill.execute_notebook(source, draft, parameters, kernel_name="python3", progress_bar=False, cwd=root())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = {"cpu_seconds": round(used.ru_utime + used.ru_stime, 1), "memory_mb": used.ru_maxrss // 1024}
    write_text(cost, json.dumps(spent))


def _common_digest() -> str:
    """What every chapter depends on: package, evidence, lock, Python, and which released data is at hand."""
    from reprolib.evidence import download

    base = root()
    files = [*files_below(base / "src"), *files_below(base / "evidence"), base / "constraints.txt"]
    at_hand = {name: download.at_hand([name]) for name in download.sources()}
    return digest_of_files(files) + platform.python_version() + json.dumps(at_hand)
