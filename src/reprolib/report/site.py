"""The book: pages generated from results (templates in book/_templates), then jupyter-book, with warnings as errors."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from reprolib.errors import ChapterError
from reprolib.project import digest_of, files_below, root, write_text
from reprolib.report.chapters import CHAPTERS
from reprolib.report.claims import MARKS, VERDICTS, Claim, load_claims
from reprolib.report.ledger import Result, anchor, badge, registered
from reprolib.report.run import results_dir

PAPERS = {
    "preference_leakage": "Preference leakage",
    "contrastive_decoding": "Contrastive decoding and score range bias",
    "overlap_bias": "Overlap bias",
    "label_bias": "Self and other label bias",
}


def build() -> Path:
    """Write the generated pages and build the site; returns its first page. Nothing is built if nothing changed.

    Raises ChapterError if jupyter-book warns or fails; the site built before stays in place.
    """
    base, site = root(), root() / "_build" / "html"
    write_pages()
    inputs = [base / "_config.yml", base / "_toc.yml", *sorted(files_below(base / "book"))]
    digest = digest_of([part for f in inputs for part in (str(f.relative_to(base)).encode(), f.read_bytes())])
    stamp = base / "_build" / "site.digest"
    if not ((site / "index.html").is_file() and stamp.is_file() and stamp.read_text() == digest):
        _jupyter_book(base, site)
        write_text(stamp, digest)
    return site / "index.html"


def headline(results: Sequence[Result]) -> dict[str, Result]:
    """The result that decides each claim's verdict: at its tier, the paper's own judgments, else the first judge's."""
    claims = load_claims()
    found: dict[str, Result] = {}
    for r in sorted(results, key=lambda r: r.judge != "paper"):
        if r.tier == claims[r.claim_id].tier:
            found.setdefault(r.claim_id, r)
    return found


def load_results() -> dict[str, list[Result]]:
    """Results of every executed chapter, by chapter. ClaimError if one fits no registered claim."""
    paths = {chapter: results_dir() / f"{chapter}.json" for chapter in CHAPTERS}
    documents = {chapter: json.loads(path.read_text()) for chapter, path in paths.items() if path.is_file()}
    found = {chapter: [Result(**r) for r in d["results"]] for chapter, d in documents.items()}
    for r in itertools.chain(*found.values()):
        registered(r.claim_id)
    return found


def verdicts() -> dict[str, str]:
    """The verdict of every registered claim, "not attempted" and "paper unclear" included."""
    decided = headline([r for found in load_results().values() for r in found])
    claims = load_claims().items()
    return {i: decided[i].verdict if i in decided else _without_result(c)["verdict"] for i, c in claims}


def summary() -> str:
    """How many claims have which verdict, in one line."""
    counts = Counter(verdicts().values())
    return f"{counts.total()} claims: " + ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])


def write_pages() -> None:
    """The ledger (page, JSON, CSV), its summary for the front page, timings and provenance, under book/generated/."""
    base, rows, decided, claims = root(), _ledger_rows(), verdicts(), load_claims().values()
    folder = base / "book" / "generated"
    write_text(folder / "ledger.json", json.dumps(rows, indent=1) + "\n")
    write_text(folder / "ledger.csv", pd.DataFrame(rows).drop(columns="data", errors="ignore").to_csv(index=False))
    by_paper = [(name, Counter(decided[c.id] for c in claims if c.paper == paper)) for paper, name in PAPERS.items()]
    filters = {"paper": PAPERS.items(), "tier": [(t, t) for t in ("published", "public", "recorded", "live")],
               "verdict": [(v, f"{MARKS[v]} {v}") for v in VERDICTS]}  # fmt: skip
    seen = {field: {row[field] for row in rows} for field in filters}
    present = {field: [(k, v) for k, v in choices if k in seen[field]] for field, choices in filters.items()}
    costs = {p.stem: json.loads(p.read_text()) for p in sorted((base / "_build" / "timings").glob("*.json"))}
    files = [base / "constraints.txt", *sorted(files_below(base / "evidence"))]
    lock = re.findall(r"^([\w.-]+)==(\S+)$", (base / "constraints.txt").read_text(), re.MULTILINE)
    pages: dict[str, dict[str, Any]] = {
        "ledger": {"rows": rows, "counts": Counter(decided.values()).items(), "filters": present},
        "summary": {"papers": [(n, c) for n, c in by_paper if c], "verdicts": VERDICTS},
        "timings": {"costs": costs},
        "provenance": {"files": [(f.relative_to(base), digest_of([f.read_bytes()])) for f in files], "packages": lock},
    }
    for name, values in pages.items():
        write_text(folder / f"{name}.md", _render(f"{name}.md.j2", values))


def _render(template: str, values: dict[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    loader = FileSystemLoader(root() / "book" / "_templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["badge"] = lambda verdict: Markup(badge(verdict))  # our own markup; all else is escaped
    return environment.get_template(template).render(values)


def _without_result(claim: Claim) -> dict[str, str]:
    if claim.unclear:
        return {"verdict": "paper unclear", "reason": claim.unclear}
    return {"verdict": "not attempted", "reason": claim.not_attempted}


def _ledger_rows() -> list[dict[str, Any]]:
    """One row a result, claims without one included, in the order of claims.toml."""
    found = [(chapter, r) for chapter, results in load_results().items() for r in results]
    nothing = dict.fromkeys([*Result.model_fields, "link"])
    rows: list[dict[str, Any]] = []
    for c in load_claims().values():
        about = {"claim_id": c.id, "paper": c.paper, "locator": c.locator, "statement": c.statement,
                 "published": c.printed, "source": c.source, "chapter": c.notebook}  # fmt: skip
        ours = [(chapter, r) for chapter, r in found if r.claim_id == c.id]
        if not ours:
            rows.append({**nothing, **about, "anchor": anchor(c.id), "tier": c.tier, **_without_result(c)})
        for chapter, r in ours:
            link = f"../chapters/{chapter}.html#{anchor(*r.key)}"
            rows.append({**r.model_dump(), **about, "anchor": anchor(*r.key), "chapter": chapter, "link": link})
    return rows


def _jupyter_book(base: Path, site: Path) -> None:
    """Build into a fresh folder and swap it in, so that a failed build leaves the old site alone."""
    draft = base / "_build" / "draft_site"
    shutil.rmtree(draft, ignore_errors=True)
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(base / "book"), "-W", "-n", "--keep-going", "-q"]
    command += [f"--config={base / '_config.yml'}", f"--toc={base / '_toc.yml'}", f"--path-output={draft}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=base)
    built = draft / "_build" / "html"
    if done.returncode != 0 or not (built / "index.html").is_file():
        lines = [line for line in (done.stderr + done.stdout).splitlines() if re.search("WARNING|rror:", line)]
        message = "\n".join(line.replace(f"{base}/", "") for line in lines[:20]) or done.stderr[-2000:]
        raise ChapterError(f"jupyter-book refused the book:\n{message}", hint="each warning is an error here")
    shutil.rmtree(site, ignore_errors=True)
    built.rename(site)
    shutil.rmtree(draft)
