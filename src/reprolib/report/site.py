"""The book: pages generated from results (templates in book/_templates), then jupyter-book, with warnings as errors."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from reprolib.errors import ChapterError
from reprolib.evidence.recorded import records
from reprolib.inference.answers import ANSWER_TOKENS
from reprolib.project import digest_of, digest_of_files, evidence_dir, files_below, root, write_text
from reprolib.report.chapters import CHAPTERS
from reprolib.report.claims import MARKS, VERDICTS, Claim, load_claims
from reprolib.report.ledger import Result, anchor, registered
from reprolib.report.page import render

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
    digest = digest_of_files([base / "_config.yml", base / "_toc.yml", *files_below(base / "book")])
    stamp = base / "_build" / "site.digest"
    if not ((site / "index.html").is_file() and stamp.is_file() and stamp.read_text() == digest):
        _jupyter_book(base, site)
        write_text(stamp, digest)
    return site / "index.html"


def verdicts() -> dict[str, str]:
    """The verdict of every registered claim, "not attempted" and "paper unclear" included.

    Decided by the result at the claim's tier: of the paper's own judgments, else of the first judge.
    """
    results = sorted((r for _, r in _results()), key=lambda r: r.judge != "paper")
    first = {(r.claim_id, r.tier): r.verdict for r in reversed(results)}
    return {c.id: first.get((c.id, c.tier), _without_result(c)["verdict"]) for c in load_claims().values()}


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
    costs = {p.stem: json.loads(p.read_text()) for p in sorted((base / "_build" / "timings").glob("*.json"))}
    files = [base / "constraints.txt", *files_below(base / "evidence")]
    lock = re.findall(r"^([\w.-]+)==(\S+)$", (base / "constraints.txt").read_text(), re.MULTILINE)
    pages: dict[str, dict[str, Any]] = {
        "ledger": {"rows": rows, "counts": Counter(decided.values()).items(), "papers": PAPERS, "marks": MARKS},
        "summary": {"papers": [(n, c) for n, c in by_paper if c], "verdicts": VERDICTS},
        "timings": {"costs": costs},
        "served": {"costs": [served_cost(*record) for record in records()]},
        "provenance": {"files": [(f.relative_to(base), digest_of([f.read_bytes()])) for f in files], "packages": lock},
    }
    for name, values in pages.items():
        write_text(folder / f"{name}.md", render(f"{name}.md.j2", **values))


def served_cost(study: str, judge: str) -> dict[str, Any]:
    """What a served judge is asked for to judge a recorded study: tokens of the prompts as `judge` counts them."""
    path = evidence_dir() / "recorded" / study / f"{judge}.parquet"
    table = pd.read_parquet(path).drop_duplicates("prompt_digest")
    told = int(table["n_tokens"].sum()) if "n_tokens" in table else None
    return {"study": study, "judge": judge, "calls": len(table), "prompt": told, "new": len(table) * ANSWER_TOKENS}


def _results() -> list[tuple[str, Result]]:
    """Chapter and result of every executed chapter. ClaimError if one fits no registered claim."""
    paths = {chapter: root() / "_build" / "results" / f"{chapter}.json" for chapter in CHAPTERS}
    documents = {chapter: json.loads(path.read_text()) for chapter, path in paths.items() if path.is_file()}
    found = [(chapter, Result(**r)) for chapter, document in documents.items() for r in document["results"]]
    for _, r in found:
        registered(r.claim_id)
    return found


def _without_result(claim: Claim) -> dict[str, str]:
    if claim.unclear:
        return {"verdict": "paper unclear", "reason": claim.unclear}
    return {"verdict": "not attempted", "reason": claim.not_attempted}


def _ledger_rows() -> list[dict[str, Any]]:
    """One row a result, claims without one included, in the order of claims.toml."""
    found, nothing = _results(), dict.fromkeys([*Result.model_fields, "link"])
    rows: list[dict[str, Any]] = []
    for c in load_claims().values():
        about = {"claim_id": c.id, "paper": c.paper, "locator": c.locator, "statement": c.statement,
                 "published": c.printed, "source": c.source, "chapter": c.notebook}  # fmt: skip
        ours = [(chapter, r) for chapter, r in found if r.claim_id == c.id]
        if not ours:
            rows.append({**nothing, **about, "anchor": anchor(c.id), "tier": c.tier, **_without_result(c)})
        for chapter, r in ours:
            link = f"../chapters/{chapter}.html#{r.anchor}"
            rows.append({**r.model_dump(), **about, "anchor": r.anchor, "chapter": chapter, "link": link})
    return rows


def _jupyter_book(base: Path, site: Path) -> None:
    """Build into a fresh folder and swap it in, so that a failed build leaves the old site alone."""
    draft = base / "_build" / "draft_site"
    shutil.rmtree(draft, ignore_errors=True)
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(base / "book"), "-W", "-n", "-q"]
    command += ["--keep-going", f"--config={base}/_config.yml", f"--toc={base}/_toc.yml", f"--path-output={draft}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=base)
    built = draft / "_build" / "html"
    if done.returncode != 0 or not (built / "index.html").is_file():
        lines = [line for line in (done.stderr + done.stdout).splitlines() if re.search("WARNING|rror:", line)]
        message = "\n".join(line.replace(f"{base}/", "") for line in lines[:20]) or done.stderr[-2000:]
        raise ChapterError(f"jupyter-book refused the book:\n{message}", hint="each warning is an error here")
    shutil.rmtree(site, ignore_errors=True)
    built.rename(site)
    shutil.rmtree(draft)
