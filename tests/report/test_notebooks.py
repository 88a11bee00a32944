"""The gates have teeth, and the chapters keep the pattern of the golden one."""

import re
import statistics
import subprocess
import sys

import nbformat.v4 as nbf
import pytest

from reprolib.errors import ChapterError
from reprolib.report import figures, ledger, notebooks
from reprolib.report.chapters import CHAPTERS
from reprolib.report.claims import load_claims

from .prose import lint_prose

PARTS = ["Parameters", "Evidence", "What would change the answer", "What we could not do", "Exercises", "Provenance"]


def sources(root):
    return {chapter: notebooks.read(root / "notebooks" / f"{chapter}.ipynb") for chapter in CHAPTERS}


def code(*outputs, source="x", count=1):
    cell = nbf.new_code_cell(source, execution_count=count)
    cell.outputs = [nbf.output_from_msg(m) if "header" in m else m for m in outputs]
    return cell


def passing(chapter="leakage_main"):
    """An executed notebook that the gate accepts: one cell with a result for every claim of the chapter."""
    mine = [c for c in load_claims().values() if c.notebook == chapter]
    results = [
        ledger.Result(claim_id=c.id, tier=c.tier, judge="paper", value=1, low=None, high=None, n=None, n_unparsed=0,
                      rule="", seed=None, data={}, verdict="reproduced", reason="r", n_needed=None, shown="1")
        for c in mine
    ]  # fmt: skip
    output = nbf.new_output("display_data", data={ledger.MIME: [r.model_dump() for r in results]})
    return nbf.new_notebook(cells=[nbf.new_markdown_cell("# T"), code(output)])


def test_the_gate_accepts_a_complete_chapter():
    assert notebooks.gate(passing(), "leakage_main") is None


def test_the_gate_refuses_each_defect():
    error = nbf.new_output("error", ename="ValueError", evalue="boom", traceback=[])
    warning = nbf.new_output("stream", name="stderr", text="x.py:1: FutureWarning: old\n")
    picture = nbf.new_output("display_data", data={"image/png": "AA=="})
    cases = [(code(error), "raised ValueError: boom"), (code(count=None), "was not run"),
             (code(warning), "FutureWarning"), (code(picture), "bare image")]  # fmt: skip
    for cell, message in cases:
        notebook = passing()
        notebook.cells.append(cell)
        with pytest.raises(ChapterError, match=message):
            notebooks.gate(notebook, "leakage_main")


def test_the_gate_refuses_a_claim_without_a_result():
    notebook = passing()
    notebook.cells[1].outputs[0].data[ledger.MIME].pop()
    with pytest.raises(ChapterError, match=r"leakage\.raw\.gemini_on_llama_student has no public result"):
        notebooks.gate(notebook, "leakage_main")


def test_normalising_drops_what_differs_between_runs_and_moves_alt_text():
    figure = nbf.new_output("display_data", data={"text/html": "<svg>", figures.MIME: {"alt": "rises to 3"}})

    def run(stamp):
        notebook = passing()
        notebook.metadata["papermill"] = {"start_time": stamp, "output_path": f"/machine/{stamp}"}
        notebook.cells.append(code(figure))
        notebook.cells[-1].metadata = {"papermill": {"duration": stamp}, "execution": {"x": stamp}}
        return notebooks.normalise(notebook, "leakage_main")

    first, second = run("9:00"), run("9:01")
    assert notebooks.dump(first) == notebooks.dump(second)
    assert "9:00" not in notebooks.dump(first)
    assert first.cells[-1].metadata["mystnb"]["image"]["alt"] == "rises to 3"
    assert "✓ reproduced" in first.cells[1].source


@pytest.mark.parametrize("typed", ["PLS is 28.7.", "It rises by 3 points.", "About 12 % of cases.", "a gap of -1.5"])
def test_the_lint_finds_a_hand_typed_result(typed):
    assert lint_prose(typed)


@pytest.mark.parametrize(
    "fine",
    ["See Table 1 and section 5.1.", "Gemini-1.5 and Qwen-2.5-14B on AlpacaEval 2.0", "$x = 0.5$ and `0.5`",
     "{glue:text}`pls` points", "[a](b-1.5.html)", "95 % intervals", "CC BY 4.0", "100 questions"],
)  # fmt: skip
def test_the_lint_leaves_names_and_bound_numbers_alone(fine):
    assert lint_prose(fine) == []


def test_no_page_or_chapter_has_a_hand_typed_result(root):
    pages = {p.name: p.read_text() for p in (root / "book").glob("*.md") if p.name != "verdicts.md"}
    for chapter, notebook in sources(root).items():
        pages[chapter] = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    assert {name: found for name, text in pages.items() if (found := lint_prose(text))} == {}


def test_links_of_written_pages_into_the_ledger_name_registered_claims(root):
    known = {ledger.anchor(claim_id) for claim_id in load_claims()}
    texts = {p.name: p.read_text() for p in (root / "book").glob("*.md")}
    links = {name: re.findall(r"ledger\.html#(claim-[\w-]*)", text) for name, text in texts.items()}
    assert len(links["is_my_leaderboard_leaking.md"]) >= 12
    assert {name: set(found) - known for name, found in links.items() if set(found) - known} == {}


@pytest.mark.parametrize("chapter", CHAPTERS)
class TestPattern:
    def test_parts_stand_in_order(self, chapter, root):
        cells = sources(root)[chapter].cells
        assert cells[0].source.startswith("# ")
        assert "**Claim.**" in cells[0].source
        titles = [line[3:] for c in cells if c.cell_type == "markdown" for line in c.source.splitlines()
                  if line.startswith("## ")]  # fmt: skip
        assert [t for t in titles if t in PARTS] == PARTS

    def test_cells_are_short(self, chapter, root):
        lengths = [len(c.source.splitlines()) for c in sources(root)[chapter].cells if c.cell_type == "code"]
        assert max(lengths) <= 30
        assert statistics.median(lengths) <= 6

    def test_sources_have_no_outputs_and_the_common_kernel(self, chapter, root):
        notebook = sources(root)[chapter]
        assert all(not c.outputs and c.execution_count is None for c in notebook.cells if c.cell_type == "code")
        assert notebook.metadata.kernelspec.name == "python3"

    def test_figures_bring_alt_text_made_from_values(self, chapter, root):
        shows = [c.source for c in sources(root)[chapter].cells if "figures.show(" in c.source]
        assert shows
        for source in shows:
            assert "alt=" in source
            assert "{" in source.split("alt=")[1].split("caption=")[0], "alt text holds no computed value"

    def test_two_exercises_with_folded_solutions(self, chapter, root):
        cells = sources(root)[chapter].cells
        solutions = [c for c in cells if "solution" in c.metadata.get("tags", [])]
        assert len(solutions) >= 2
        for cell in solutions:
            assert "hide-cell" in cell.metadata.tags
            assert cell.source.count("# BEGIN SOLUTION") == cell.source.count("# END SOLUTION") == 1

    def test_student_notebook_is_current_and_holds_no_solution(self, chapter, root):
        committed = (root / "notebooks" / "exercises" / f"{chapter}.ipynb").read_text()
        assert committed == notebooks.dump(notebooks.student_copy(sources(root)[chapter]))
        assert "BEGIN SOLUTION" not in committed
        assert "your code here" in committed

    def test_with_its_solutions_a_student_notebook_has_every_name_it_uses(self, chapter, root, tmp_path):
        """Judged by ruff, which knows nothing of how the cells were chosen."""
        kept = {cell.source for cell in notebooks.read(root / "notebooks" / "exercises" / f"{chapter}.ipynb").cells}
        whole = sources(root)[chapter]
        whole.cells = [c for c in whole.cells if c.source in kept or "solution" in c.metadata.get("tags", [])]
        (tmp_path / "solved.ipynb").write_text(notebooks.dump(whole))
        command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(tmp_path)]
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout
