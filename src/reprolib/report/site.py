"""The book: pages generated from results (templates in book/_templates), then jupyter-book, with warnings as errors."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pooch
from markupsafe import Markup

from reprolib.errors import ChapterError
from reprolib.evidence.recorded import records
from reprolib.project import digest, files_below, root, write_text
from reprolib.report.chapters import CHAPTERS
from reprolib.report.claims import VERDICTS, load_claims
from reprolib.report.ledger import Result, anchor, registered
from reprolib.report.page import render
from reprolib.report.run import LARGE_GPU, PLANNED, costs

PAPERS = {
    "preference_leakage": "Preference leakage",
    "contrastive_decoding": "Contrastive decoding and score range bias",
    "overlap_bias": "Overlap bias",
    "label_bias": "Self and other label bias",
}


def build() -> Path:
    """Write the generated pages and, if anything changed, build the site: its first page. A warning is an error."""
    write_pages()
    base, build = root(), root() / "_build"
    site, draft, stamp = build / "html", build / "draft_site", build / "site.digest"
    made_from = digest([base / "_config.yml", base / "_toc.yml", *files_below(base / "book")])
    if (site / "index.html").is_file() and stamp.is_file() and stamp.read_text() == made_from:
        return site / "index.html"
    shutil.rmtree(draft, ignore_errors=True)
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(base / "book"), "-W", "-n", "-q"]
    command += ["--keep-going", f"--config={base}/_config.yml", f"--toc={base}/_toc.yml", f"--path-output={draft}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=base)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if re.search("WARNING|rror:", line)]
        raise ChapterError("\n".join(["jupyter-book refused the book:", *lines[:20]]), hint="each warning is an error")
    shutil.rmtree(site, ignore_errors=True)
    (draft / "_build" / "html").rename(site)
    shutil.rmtree(draft)
    write_text(stamp, made_from)
    return site / "index.html"


def verdicts() -> dict[str, str]:
    """The verdict of every claim, by the result at its tier: of the paper's own judgments, else of the first judge."""
    claims, found = load_claims(), dict[str, str]()
    for row in sorted(_rows(), key=lambda row: row["judge"] != "paper"):
        if row["tier"] == claims[row["claim_id"]].tier:
            found.setdefault(row["claim_id"], row["verdict"])
    return {c.id: found.get(c.id, "paper unclear" if c.unclear else "not attempted") for c in claims.values()}


def summary() -> str:
    """How many claims have which verdict, in one line."""
    counts = Counter(verdicts().values())
    return f"{counts.total()} claims: " + ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])


def write_pages() -> None:
    """The ledger (page, JSON, CSV), its summary for the front page, timings and provenance, under book/generated/."""
    from reprolib.inference.api_judge import ANSWER_TOKENS  # its client takes a second to import

    base, rows, decided, claims = root(), _rows(), verdicts(), load_claims().values()
    folder = base / "book" / "generated"
    write_text(folder / "ledger.json", json.dumps(rows, indent=1) + "\n")
    write_text(folder / "ledger.csv", pd.DataFrame(rows).drop(columns="data").to_csv(index=False))
    by_paper = [(name, Counter(decided[c.id] for c in claims if c.paper == paper)) for paper, name in PAPERS.items()]
    spent = {p.stem: json.loads(p.read_text()) for p in sorted((base / "_build" / "timings").glob("*.json"))}
    files = [base / "constraints.txt", *files_below(base / "evidence")]
    lock = re.findall(r"^([\w.-]+)==(\S+)$", (base / "constraints.txt").read_text(), re.MULTILINE)
    served = []
    for study, judge in records():  # what a served judge would be asked for, in tokens as this judge counts them
        path = base / "evidence" / "recorded" / study / f"{judge}.parquet"
        table = pd.read_parquet(path).drop_duplicates("prompt_digest")
        told = int(table["n_tokens"].sum()) if "n_tokens" in table else None
        served.append([study, judge, len(table), told, len(table) * ANSWER_TOKENS])
    plans = {profile: costs([], profile=profile, tflops=LARGE_GPU) for profile in PLANNED}
    measured = re.findall(r"(?:^\|.*\n)+", (base / "benchmarks" / "README.md").read_text(), re.MULTILINE)[0]
    pages: dict[str, dict[str, Any]] = {
        "ledger": {"rows": rows, "counts": Counter(decided.values()).items(), "papers": PAPERS},
        "summary": {"papers": [(n, c) for n, c in by_paper if c], "verdicts": VERDICTS},
        "timings": {"costs": spent},
        "served": {"costs": served},
        "hardware": {"plans": plans, "tflops": LARGE_GPU, "measured": Markup(measured)},
        "provenance": {"files": [(f.relative_to(base), pooch.file_hash(f)) for f in files], "packages": lock},
    }
    for name, values in pages.items():
        write_text(folder / f"{name}.md", render(f"{name}.md.j2", **values))


def _rows() -> list[dict[str, Any]]:
    """The ledger: a row a result, claims without one included, in the order of claims.toml."""
    found: dict[str, list[dict[str, Any]]] = {claim_id: [] for claim_id in load_claims()}
    for chapter in CHAPTERS:
        path = root() / "_build" / "results" / f"{chapter}.json"
        for result in json.loads(path.read_text())["results"] if path.is_file() else []:
            found[registered(result["claim_id"]).id].append(result | {"chapter": chapter})
    rows = []
    for c in load_claims().values():
        about = {"paper": c.paper, "locator": c.locator, "statement": c.statement, "published": c.printed,
                 "source": c.source}  # fmt: skip
        for row in found[c.id]:
            name, chapter = anchor(c.id, row["tier"], row["judge"]), row.pop("chapter")
            where = {"chapter": chapter, "anchor": name, "link": f"../chapters/{chapter}.html#{name}"}
            rows.append(row | about | where)
        if not found[c.id]:
            verdict, reason = ("paper unclear", c.unclear) if c.unclear else ("not attempted", c.not_attempted)
            nothing = {"claim_id": c.id, "tier": c.tier, "verdict": verdict, "reason": reason}
            where = {"chapter": c.notebook, "anchor": anchor(c.id), "link": None}
            rows.append(dict.fromkeys(Result.model_fields) | nothing | about | where)
    return rows
