"""Operations on notebook files: normalise an executed one, refuse a bad one, derive a student copy."""

from __future__ import annotations

import copy
import re
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat

from reprolib.errors import ChapterError
from reprolib.report import figures, ledger, page
from reprolib.report.claims import VERDICTS, load_claims

Notebook = Any  # nbformat's NotebookNode: a dictionary with attribute access
_BEGIN, _END, _STUB = "# BEGIN SOLUTION", "# END SOLUTION", "...  # your code here"


def read(path: Path) -> Notebook:
    """A notebook, format 4. Raises ChapterError if the file is not one."""
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises its own, JSON's and Unicode's errors
        raise ChapterError(f"{path.name} is not a notebook", hint=str(error).splitlines()[0]) from error


def normalise(notebook: Notebook, chapter: str) -> Notebook:
    """An executed notebook ready for the book: the same bytes for the same results, on any machine.

    Drops papermill's paths, times and random cell ids; copies alt texts into cell metadata, where accessibility checks
    look for them; puts the chapter's verdicts under its title.
    """
    result = copy.deepcopy(notebook)
    result.metadata.pop("papermill", None)
    for number, cell in enumerate(result.cells):
        cell.id = f"cell-{number}"
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        alts = [alt for output in cell.get("outputs", []) if (alt := output.get("data", {}).get(figures.MIME))]
        if alts:
            cell.metadata["mystnb"] = {"image": {"alt": alts[0]["alt"]}}
    if results := ledger.collect(result):
        headline = [c.id for c in load_claims().values() if c.notebook == chapter]
        counts = Counter(r.verdict for r in results if r.claim_id in headline)
        ordered = [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]
        banner = page.render("verdicts.html.j2", counts=ordered, first=headline and ledger.anchor(headline[0]))
        result.cells.insert(1, nbformat.v4.new_markdown_cell(banner, id="verdicts"))
    return result


def gate(notebook: Notebook, chapter: str) -> None:
    """Refuse an executed notebook that a reader must not see.

    Raises ChapterError: a cell that raised, did not run or printed to stderr, a figure without alt text, or a claim of
    this chapter without a result at its headline tier.
    """
    ours = (c for c in notebook.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", []))
    for number, cell in enumerate(ours):
        if cell.cell_type == "code" and cell.execution_count is None and cell.source.strip():
            raise ChapterError(f"{chapter}: cell {number} was not run", hint="run the chapter again")
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                raise ChapterError(f"{chapter}: cell {number} raised {output.ename}: {output.evalue}")
            if output.get("name") == "stderr":
                raise ChapterError(f"{chapter}: cell {number} warns: {output.text.strip().splitlines()[-1]}")
            if output.get("data", {}).get("image/png"):
                raise ChapterError(f"{chapter}: cell {number} shows a bare image", hint="use report.figures.show")
    have = {(r.claim_id, r.tier) for r in ledger.collect(notebook)}
    for claim in load_claims().values():
        if claim.notebook == chapter and not claim.unclear and (claim.id, claim.tier) not in have:
            raise ChapterError(f"{chapter}: claim {claim.id} has no {claim.tier} result", hint="check it in a cell")


def student_copy(notebook: Notebook) -> Notebook:
    """The exercises of a chapter without their solutions: what a teacher hands out.

    Keeps what stands before the first section, every cell tagged `parameters` or `setup`, and the section "Exercises";
    in cells tagged `solution` the lines between `# BEGIN SOLUTION` and `# END SOLUTION` give way to a stub.
    """
    student = copy.deepcopy(notebook)
    cells, student.cells, inside = student.cells, [], True
    for cell in cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            inside = cell.source.startswith("## Exercises")
        if inside or not {"parameters", "setup"}.isdisjoint(tags):
            cell.id = f"student-{len(student.cells)}"
            if "solution" in tags:
                cell.source = re.sub(rf"{_BEGIN}.*?{_END}", _STUB, cell.source, flags=re.DOTALL)
            student.cells.append(cell)
    return student


def dump(notebook: Notebook) -> str:
    """The notebook as text, keys sorted, one newline at the end."""
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"
