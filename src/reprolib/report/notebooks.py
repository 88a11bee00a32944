"""Operations on notebook files: normalise an executed one, refuse a bad one, derive a student copy."""

import ast
import re
import symtable
from collections import Counter
from functools import partial
from typing import Any

import nbformat

from reprolib.errors import ChapterError
from reprolib.report import figures, ledger, page
from reprolib.report.claims import VERDICTS, load_claims

Notebook = Any  # nbformat's NotebookNode: a dictionary with attribute access
read = partial(nbformat.read, as_version=4)


def dump(notebook: Notebook) -> str:
    """The notebook as text, keys sorted, one newline at the end."""
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def normalise(notebook: Notebook, chapter: str) -> Notebook:
    """An executed notebook made ready for the book, in place: the same bytes for the same results, on any machine.

    Drops paths, times and random cell ids, copies alt texts into cell metadata, puts the verdicts under the title.
    """
    notebook.metadata.pop("papermill", None)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict({"tags": cell.metadata.get("tags", [])})
        alts = [alt for output in cell.get("outputs", []) if (alt := output.get("data", {}).get(figures.MIME))]
        if alts:
            cell.metadata["mystnb"] = {"image": {"alt": alts[0]["alt"]}}
    if results := ledger.collect(notebook):
        tiers = {c.id: c.tier for c in load_claims().values() if c.notebook == chapter}
        mine = {r.claim_id: r for r in reversed(results) if tiers.get(r.claim_id) == r.tier}  # of several, the first
        counts = Counter(r.verdict for r in mine.values())
        ordered = [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]
        first = [ledger.anchor(r.claim_id, r.tier, r.judge) for r in results if r in mine.values()][:1]
        banner = page.render("verdicts.html.j2", counts=ordered, first=first and first[0])
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(banner, id="verdicts"))
    return notebook


def gate(notebook: Notebook, chapter: str) -> None:
    """Refuse an executed notebook that a reader must not see, with a ChapterError."""
    ours = (c for c in notebook.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", []))
    for number, cell in enumerate(ours):
        if cell.cell_type == "code" and cell.execution_count is None and cell.source.strip():
            raise ChapterError(f"cell {number} was not run", hint="run the chapter again")
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                raise ChapterError(f"cell {number} raised {output.ename}: {output.evalue}")
            if output.get("name") == "stderr":
                raise ChapterError(f"cell {number} warns: {output.text.strip().splitlines()[-1]}")
            if output.get("data", {}).get("image/png"):
                raise ChapterError(f"cell {number} shows a bare image", hint="use report.figures.show")
    have = {(r.claim_id, r.tier) for r in ledger.collect(notebook)}
    for claim in load_claims().values():
        if claim.notebook == chapter and not claim.unclear and (claim.id, claim.tier) not in have:
            raise ChapterError(f"claim {claim.id} has no {claim.tier} result", hint="check it in a cell")


def student_copy(notebook: Notebook) -> Notebook:
    """The exercises of a chapter without their solutions, in place: what a teacher hands out.

    Keeps what stands before the first section, every cell tagged `parameters` or `setup`, the section "Exercises", and
    the cells that make what these read; in cells tagged `solution` the lines between `# BEGIN SOLUTION` and
    `# END SOLUTION` give way to a stub.
    """
    cells, inside, wanted = notebook.cells, True, [False] * len(notebook.cells)
    for number, cell in enumerate(cells):
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            inside = cell.source.startswith("## Exercises")
        wanted[number] = inside or not {"parameters", "setup"}.isdisjoint(cell.metadata.get("tags", []))
    needed: set[str] = set()
    for number, cell in reversed([*enumerate(cells)]):
        if cell.cell_type == "code":
            bound, changed, read = _names(cell.source)
            wanted[number] = wanted[number] or not needed.isdisjoint(bound | changed)
            needed = (needed - bound) | read if wanted[number] else needed
    notebook.cells = [cell for cell, keep in zip(cells, wanted, strict=True) if keep]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"student-{number}"
        if "solution" in cell.metadata.get("tags", []):
            stub = ("# BEGIN SOLUTION.*?# END SOLUTION", "...  # your code here")
            cell.source = re.sub(*stub, cell.source, flags=re.DOTALL)
    return notebook


def _names(source: str) -> tuple[set[str], set[str], set[str]]:
    """Names that a cell binds, those whose parts it changes (`x["a"] = 1`), and those that it reads from elsewhere."""
    top = symtable.symtable(source, "cell", "exec")
    tables = [top]
    for table in tables:
        tables += table.get_children()
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    used = [s for table in tables for s in table.get_symbols() if s.is_referenced() and (table is top or s.is_global())]
    parts = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Subscript | ast.Attribute))
    changed = {n.value.id for n in parts if isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name)}
    return bound, changed, {s.get_name() for s in used}
