import ast

import pytest

from reprolib.errors import ParameterError
from reprolib.report import notebooks
from reprolib.report.chapters import CHAPTERS, check_parameters, validate


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_parameters_cell_has_the_names_and_defaults_of_the_model(chapter, root):
    notebook = notebooks.read(root / "notebooks" / f"{chapter}.ipynb")
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    given = {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(cell.source).body}
    assert given == {name: f.default for name, f in CHAPTERS[chapter].model_fields.items()}
    assert all("#" in line for line in cell.source.splitlines())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sed": 1}, "did you mean 'seed'"),
        ({"draws": "many"}, "draws is 'many'.*resampling draws"),
        ({"draws": 5}, "draws is 5.*greater than or equal to 100"),
        ({"tie_rule": "third"}, "'strict', 'half' or 'drop'"),
        ({"seed": "1.5"}, "seed is '1.5'"),
    ],
)
def test_bad_parameters_name_what_is_allowed(values, message):
    with pytest.raises(ParameterError, match=message):
        validate("leakage_main", values)


def test_unknown_chapter_offers_a_close_one():
    with pytest.raises(ParameterError, match="did you mean 'leakage_main'"):
        validate("leakage_mian", {})


def test_text_from_a_command_line_is_read_as_its_type():
    parameters = validate("leakage_main", {"draws": "500", "lab": "None"})
    assert (parameters.draws, parameters.lab) == (500, None)


def test_a_name_that_papermill_injected_and_nobody_knows_is_an_error_in_the_notebook():
    namespace = {"In": ["", "# Parameters\nsed = 1\n"], "sed": 1, "seed": 3, "draws": 200, "other": "ignored"}
    with pytest.raises(ParameterError, match="no parameter 'sed'"):
        check_parameters("leakage_main", namespace)
    namespace["In"] = ["", "seed = 3\nlater = 1"]
    assert check_parameters("leakage_main", namespace).seed == 3
