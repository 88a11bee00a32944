import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from reprolib.errors import ChapterError, ParameterError
from reprolib.metrics.resampling import Estimate
from reprolib.report import ledger

CELL = "leakage.table1.arena_hard.mistral.gpt_gemini"


@pytest.fixture(autouse=True)
def shell():
    InteractiveShell.instance()


def shown(function):
    with capture_output() as captured:
        result = function()
    outputs = [{"data": o.data} for o in captured.outputs]
    return result, {"cells": [{"outputs": outputs}]}


def test_a_check_travels_in_the_cell_output_and_is_collected():
    estimate = Estimate(28.714, 21.3, 36.3, 500, "bootstrap", 1)
    result, notebook = shown(lambda: ledger.check(CELL, estimate))
    assert ledger.collect(notebook) == [result]
    assert (result.verdict, result.n, result.seed, result.shown) == ("reproduced", 500, 1, "28.71 [21.30, 36.30]")
    html = notebook["cells"][0]["outputs"][0]["data"]["text/html"]
    assert "✓ reproduced" in html
    assert "28.7 %" in html


def test_a_table_is_one_output_with_all_results():
    def two():
        with ledger.table():
            ledger.check(CELL, 28.7)
            ledger.check("leakage.table8.worked_example", 18.4)

    _, notebook = shown(two)
    assert len(notebook["cells"][0]["outputs"]) == 1
    assert len(ledger.collect(notebook)) == 2


def test_after_an_error_inside_a_table_checks_are_shown_singly_again():
    with pytest.raises(ParameterError), capture_output(), ledger.table():
        ledger.check("no.such_claim", 1.0)
    _, notebook = shown(lambda: ledger.check(CELL, 28.7))
    assert len(ledger.collect(notebook)) == 1


def test_unregistered_claim_offers_close_ones():
    with pytest.raises(ParameterError, match=CELL):
        ledger.check(CELL + "x", 1.0)


def test_two_results_for_one_claim_are_refused_but_another_tier_or_judge_is_fine():
    def check(**kwargs):
        return shown(lambda: ledger.check(CELL, 28.7, **kwargs))[1]["cells"]

    assert len(ledger.collect({"cells": check() + check(judge="qwen", tier="live")})) == 2
    with pytest.raises(ChapterError, match="two results"):
        ledger.collect({"cells": check() + check()})


def test_model_text_in_a_judge_name_is_escaped():
    _, notebook = shown(lambda: ledger.check(CELL, 28.7, judge="<script>x</script>", tier="live"))
    assert "<script>" not in notebook["cells"][0]["outputs"][0]["data"]["text/html"].replace("data-claim", "")


def test_grading_tells_the_distance():
    assert ledger.grade(CELL, 28.714).startswith("Right")
    assert "14 printed digits away" in ledger.grade(CELL, 30.1)
