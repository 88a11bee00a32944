"""The runner on a toy chapter: real papermill, real kernels, no science."""

import json

import nbformat.v4 as nbf
import pytest

from reprolib.errors import ChapterError, ParameterError
from reprolib.report import notebooks, run
from reprolib.report.chapters import CHAPTERS, Parameters


@pytest.fixture
def toy(project, monkeypatch):
    """A project with two toy chapters; returns a function that writes a chapter's last cell."""
    monkeypatch.delenv("REPROLIB_MIRROR", raising=False)
    for name in list(CHAPTERS):
        monkeypatch.delitem(CHAPTERS, name)
    (project / "evidence/claims.toml").write_text("")

    def chapter(name, code="print(seed + draws)"):
        monkeypatch.setitem(CHAPTERS, name, Parameters)
        parameters = nbf.new_code_cell("seed = 20250206\ndraws = 10000", metadata={"tags": ["parameters"]})
        notebook = nbf.new_notebook(cells=[nbf.new_markdown_cell("# Toy"), parameters, nbf.new_code_cell(code)])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        (project / "notebooks" / f"{name}.ipynb").write_text(notebooks.dump(notebook))

    return chapter


def execute(names=(), **overrides):
    options = {k: overrides.pop(k) for k in ("time_limit", "workers") if k in overrides}
    return run.run(run.plan(list(names), profile="default", overrides=overrides), **options)


def test_chapters_run_once_then_only_what_changed(toy, project):
    toy("one")
    toy("two")
    assert {j.chapter for j in execute()} == {"one", "two"}
    first = (project / "book/chapters/one.ipynb").read_bytes()
    assert execute() == []
    toy("two", "print(seed - draws)")
    assert [j.chapter for j in execute()] == ["two"]
    assert [j.chapter for j in execute(["one"], seed="7")] == ["one"]
    assert [j.chapter for j in execute(["one"])] == ["one"]
    assert (project / "book/chapters/one.ipynb").read_bytes() == first  # run twice: the same bytes
    (project / "evidence/published/tables.toml").write_text("")
    assert len(execute()) == 2  # evidence changed: everything depends on it


def test_parameters_arrive_typed(toy, project):
    toy("one")
    execute(["one"], seed="7", draws="200")
    document = json.loads((project / "_build/results/one.json").read_text())
    assert document["parameters"] == {"seed": 7, "draws": 200}
    assert "207" in (project / "book/chapters/one.ipynb").read_text()


def test_a_failing_chapter_stops_with_its_cell_and_leaves_earlier_results(toy, project):
    toy("good")
    toy("bad")
    execute()
    earlier = (project / "book/chapters/bad.ipynb").read_bytes()
    toy("bad", "1 / 0")
    toy("good", "print('new')")
    with pytest.raises(ChapterError, match=r"bad: cell 2 raised ZeroDivisionError.*1 of 2 chapters are fine"):
        execute()
    assert (project / "book/chapters/bad.ipynb").read_bytes() == earlier
    assert "new" in (project / "book/chapters/good.ipynb").read_text()


def test_a_hanging_chapter_is_ended(toy):
    toy("slow", "import time; time.sleep(60)")
    with pytest.raises(ChapterError, match="not finished after 3 s; raise --time-limit"):
        execute(time_limit=3)


def test_a_kernel_that_dies_is_reported(toy):
    toy("dead", "import os; os._exit(1)")
    with pytest.raises(ChapterError, match="dead: "):
        execute(time_limit=60)


def test_bad_names_and_values_are_refused_before_a_kernel_starts(toy):
    toy("one")
    with pytest.raises(ParameterError, match="did you mean 'one'"):
        execute(["ones"])
    with pytest.raises(ParameterError, match="did you mean 'seed'"):
        execute(["one"], sed="1")
    with pytest.raises(ParameterError, match="allowed: default, smoke"):
        run.plan([], profile="huge", overrides={})


def test_plan_names_every_parameter_and_runs_nothing(toy, project):
    toy("one")
    text = run.show_plan(run.plan(["one"], profile="smoke", overrides={}))
    assert "one: would run" in text
    assert "given: draws = 200" in text
    assert not (project / "book/chapters").exists()
