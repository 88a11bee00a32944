"""The book: pages generated from results, then jupyter-book, always clean, with warnings as errors."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    if (site / "index.html").is_file() and stamp.is_file() and stamp.read_text() == digest:
        return site / "index.html"
    _jupyter_book(base, site)
    write_text(stamp, digest)
    return site / "index.html"


def headline(results: Sequence[Result]) -> dict[str, Result]:
    """The result that decides each claim's verdict: the paper's own judgments at the claim's tier."""
    claims = load_claims()
    return {r.claim_id: r for r in results if r.judge == "paper" and r.tier == claims[r.claim_id].tier}


def load_results() -> dict[str, list[Result]]:
    """Results of every executed chapter, by chapter."""
    documents = [json.loads((results_dir() / f"{chapter}.json").read_text()) for chapter in _executed()]
    return {d["chapter"]: [registered(Result(**r)) for r in d["results"]] for d in documents}


def _executed() -> list[str]:
    return [chapter for chapter in CHAPTERS if (results_dir() / f"{chapter}.json").is_file()]


def verdicts() -> dict[str, str]:
    """The verdict of every registered claim, "not attempted" and "paper unclear" included."""
    decided = headline([r for found in load_results().values() for r in found])
    return {c.id: decided[c.id].verdict if c.id in decided else _without_result(c)[0] for c in load_claims().values()}


def summary() -> str:
    """How many claims have which verdict, in one line."""
    counts = Counter(verdicts().values())
    return f"{counts.total()} claims: " + ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])


def write_pages() -> None:
    """The ledger (page, JSON, CSV), its summary for the front page, timings and provenance, under book/generated/."""
    folder = root() / "book" / "generated"
    by_chapter = load_results()
    rows = _ledger_rows(by_chapter)
    write_text(folder / "ledger.md", _ledger_page(rows))
    write_text(folder / "ledger.json", json.dumps(rows, indent=1) + "\n")
    write_text(folder / "ledger.csv", _csv(rows))
    write_text(folder / "summary.md", _summary_table())
    write_text(folder / "timings.md", _timings_page())
    write_text(folder / "provenance.md", _provenance_page())


def _without_result(claim: Claim) -> tuple[str, str]:
    return ("paper unclear", claim.unclear) if claim.unclear else ("not attempted", claim.not_attempted)


def _ledger_rows(by_chapter: dict[str, list[Result]]) -> list[dict[str, Any]]:
    """One row a result, claims without one included, in the order of claims.toml; headline results first."""
    found: dict[str, list[tuple[str, Result]]] = {}
    for chapter, results in by_chapter.items():
        for r in results:
            found.setdefault(r.claim_id, []).append((chapter, r))
    rows = []
    for claim in load_claims().values():
        about = {"claim_id": claim.id, "paper": claim.paper, "locator": claim.locator, "statement": claim.statement,
                 "published": claim.printed, "source": claim.source, "headline_tier": claim.tier}  # fmt: skip
        if claim.id not in found:
            verdict, reason = _without_result(claim)
            rows.append({**about, "chapter": claim.notebook, "verdict": verdict, "reason": reason, "link": None})
        for chapter, r in found.get(claim.id, []):
            link = f"../chapters/{chapter}.html#{anchor(r)}"
            rows.append({**about, "chapter": chapter, "link": link, **r.model_dump(exclude={"claim_id"})})
    return rows


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row if name != "data"))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _ledger_page(rows: Sequence[dict[str, Any]]) -> str:
    body, seen = [], set()
    for row in rows:
        target = "" if row["chapter"] in seen or not row["link"] else f' id="{row["chapter"]}"'
        seen.add(row["chapter"] if row["link"] else None)
        body.append(_ledger_row(row, target))
    options = {
        "paper": {key: name for key, name in PAPERS.items() if any(r["paper"] == key for r in rows)},
        "tier": {t: t for t in ("published", "public", "recorded", "live") if any(r.get("tier") == t for r in rows)},
        "verdict": {v: f"{MARKS[v]} {v}" for v in VERDICTS if any(r["verdict"] == v for r in rows)},
    }
    filters = "".join(
        f'<label>{field.capitalize()} <select data-filter="{field}"><option value="">all</option>'
        + "".join(f'<option value="{k}">{html.escape(v)}</option>' for k, v in choices.items())
        + "</select></label>"
        for field, choices in options.items()
    )
    return f"""# Ledger of claims

Every claim this book tests, with the paper's number beside ours. A claim is registered, with its criterion, before it
is run; [how to read a verdict](../verdicts.md) says what the six words mean. Save the whole table as
{{download}}`JSON <ledger.json>` or {{download}}`CSV <ledger.csv>`.

{_counts_line()}

<div class="ledger-filters" hidden>{filters}<span aria-live="polite" class="ledger-count"></span></div>

<div class="claims scroll" tabindex="0" role="group" aria-label="Ledger of claims">
<table class="ledger"><thead><tr><th scope="col">Claim</th><th scope="col">Paper</th><th scope="col">Here</th>
<th scope="col">Verdict</th></tr></thead><tbody>
{"".join(body)}
</tbody></table></div>

{_FILTER_SCRIPT}
"""


def _ledger_row(row: dict[str, Any], target: str) -> str:
    tier = row.get("tier", row["headline_tier"])
    secondary = " Known from a secondary source only." if row["source"] == "secondary" else ""
    claim, locator = html.escape(row["statement"]), f"{html.escape(row['locator'])}.{secondary}"
    here = ""
    if row["link"]:
        claim = f'<a href="{row["link"]}">{claim}</a>'
        judge = "" if row["judge"] == "paper" else html.escape(row["judge"]) + ", "
        n = f", n = {row['n']:,}" if row["n"] else ""
        here = f'{row["shown"]}<span class="locator">{judge}{tier}{n}</span>'
    return (
        f'<tr{target} data-paper="{row["paper"]}" data-tier="{tier}" data-verdict="{row["verdict"]}">'
        f'<td>{claim}<span class="locator">{locator}</span></td>'
        f'<td class="number" data-label="Paper">{row["published"]}</td>'
        f'<td class="number" data-label="Here">{here}</td>'
        f'<td>{badge(row["verdict"])}<span class="locator">{html.escape(row["reason"])}</span></td></tr>\n'
    )


# Hidden without scripts: then all rows show, and nothing that does not work is on the page.
_FILTER_SCRIPT = """<script>
(() => {
  const box = document.querySelector(".ledger-filters");
  const rows = [...document.querySelectorAll("table.ledger tbody tr")];
  const selects = [...box.querySelectorAll("select")];
  const apply = () => {
    const wanted = selects.filter((s) => s.value).map((s) => [s.dataset.filter, s.value]);
    rows.forEach((row) => { row.hidden = !wanted.every(([field, value]) => row.dataset[field] === value); });
    box.querySelector(".ledger-count").textContent = `${rows.filter((r) => !r.hidden).length} of ${rows.length} rows`;
  };
  selects.forEach((s) => s.addEventListener("change", apply));
  box.hidden = false;
  apply();
})();
</script>"""


def _counts_line() -> str:
    counts = Counter(verdicts().values())
    badges = " ".join(f"{badge(v)} &times; {counts[v]}" for v in VERDICTS if counts[v])
    return f'<p class="verdicts">{badges}</p>'


def _summary_table() -> str:
    claims, decided = load_claims(), verdicts()
    lines = []
    for paper, name in PAPERS.items():
        counts = Counter(decided[c.id] for c in claims.values() if c.paper == paper)
        if counts:
            cells = "".join(f'<td class="number">{counts[v] or ""}</td>' for v in VERDICTS)
            lines.append(f'<tr><th scope="row">{name}</th>{cells}<td class="number">{counts.total()}</td></tr>')
    head = "".join(f'<th scope="col">{badge(v)}</th>' for v in VERDICTS)
    return (
        '<div class="scroll" tabindex="0" role="group" aria-label="Claims by paper and verdict">'
        f'<table class="summary"><thead><tr><th scope="col">Paper</th>{head}<th scope="col">all</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>\n"
    )


def _timings_page() -> str:
    """The one page with volatile values: what each chapter cost when it was executed."""
    rows = []
    for path in sorted((root() / "_build" / "timings").glob("*.json")):
        cost = json.loads(path.read_text())
        rows.append(f"| {path.stem} | {cost['seconds']} | {cost['cpu_seconds']} | {cost['memory_mb']} |")
    return (
        "# Timings\n\nWhat each chapter cost on the machine that built this book. All values that differ between two "
        "builds stand on this page; every other page is the same byte for byte.\n\n"
        "| chapter | seconds | CPU-seconds | memory (MB) |\n| --- | ---: | ---: | ---: |\n" + "\n".join(rows) + "\n"
    )


def _provenance_page() -> str:
    base = root()
    lock = dict(re.findall(r"^([\w.-]+)==(\S+)$", (base / "constraints.txt").read_text(), re.MULTILINE))
    files = [base / "constraints.txt", *sorted(files_below(base / "evidence"))]
    digests = "\n".join(f"| `{f.relative_to(base)}` | `{digest_of([f.read_bytes()])[:16]}` |" for f in files)
    packages = "\n".join(f"| {name} | {version} |" for name, version in sorted(lock.items()))
    return (
        "# Provenance\n\nThe files that every number of this book rests on, with the first sixteen digits of a digest, "
        f"and the {len(lock)} packages of the lock.\n\n| file | digest |\n| --- | --- |\n{digests}\n\n"
        f"## Packages\n\n| package | version |\n| --- | --- |\n{packages}\n"
    )


def _jupyter_book(base: Path, site: Path) -> None:
    """Build into a fresh folder and swap it in, so that a failed build leaves the old site alone."""
    draft = base / "_build" / "draft_site"
    shutil.rmtree(draft, ignore_errors=True)
    options = {"--config": base / "_config.yml", "--toc": base / "_toc.yml", "--path-output": draft}
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(base / "book"), "-W", "-n", "--keep-going", "-q"]
    command += [str(part) for pair in options.items() for part in pair]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=base)
    built = draft / "_build" / "html"
    if done.returncode != 0 or not (built / "index.html").is_file():
        lines = [line for line in (done.stderr + done.stdout).splitlines() if re.search("WARNING|ERROR|rror:", line)]
        message = "\n".join(line.replace(str(base) + "/", "") for line in lines[:20]) or done.stderr[-2000:]
        raise ChapterError(f"jupyter-book refused the book:\n{message}", hint="each warning is an error here")
    shutil.rmtree(site, ignore_errors=True)
    built.rename(site)
    shutil.rmtree(draft)
    print(f"book: built in {time.monotonic() - start:.0f} s", flush=True)
