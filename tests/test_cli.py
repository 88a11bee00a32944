import pytest

from reprolib import cli


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "leakage_mian"], "did you mean 'leakage_main'"),
        (["run", "leakage_main", "-p", "sed=1"], "did you mean 'seed'"),
        (["run", "leakage_main", "-p", "seed"], "write -p name=value"),
        (["run", "--profile", "huge"], "no profile 'huge'"),
        (["fetch", "nothing"], "allowed: leakage_gemini_judgments"),
        (["recompute", "nothing"], "no public study 'nothing'"),
        (["exercises", "nothing"], "no chapter 'nothing'"),
        (["judge", "in.jsonl", "out.parquet", "--max-new-tokens", "4", "--plan"], "give either --labels"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_1(arguments, message, capsys, monkeypatch):
    monkeypatch.delenv("REPROLIB_MIRROR", raising=False)
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("reprolib: ")
    assert len(error.splitlines()) == 1


def test_plan_prints_parameters_and_stops(capsys):
    assert cli.main(["run", "leakage_main", "--plan", "-p", "tie_rule=half"]) == 0
    text = capsys.readouterr().out
    assert "given: tie_rule = 'half'" in text
    assert "tie_rule = 'strict' (strict, half, drop)" in text
    assert "draws = 10000 (100 to 1,000,000)" in text


def test_exercises_are_written_as_committed(project, root):
    path = project / "notebooks" / "exercises" / "leakage_main.ipynb"
    path.unlink()
    assert cli.main(["exercises", "leakage_main"]) == 0
    assert path.read_bytes() == (root / "notebooks" / "exercises" / "leakage_main.ipynb").read_bytes()


def test_fetch_from_a_mirror_prints_where_each_file_is(mirror, capsys):
    assert cli.main(["fetch", "leakage_gemini_judgments"]) == 0
    assert str(mirror) in capsys.readouterr().out
