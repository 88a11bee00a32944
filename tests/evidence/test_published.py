import pytest

from reprolib.errors import EvidenceError, ParameterError
from reprolib.evidence import published
from reprolib.project import evidence_dir


@pytest.mark.parametrize("name", [path.stem for path in evidence_dir().glob("published/*.csv")])
def test_every_table_of_the_project_passes_its_own_checks(name):
    table = published(name)
    assert len(table) > 0
    assert table.source.str.len().min() > 0


def edit(project, old, new, name="leakage_raw_rates"):
    path = project / "evidence" / "published" / f"{name}.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_missing_column_is_named(project):
    edit(project, ",win_a,", ",wins,")
    with pytest.raises(EvidenceError, match="lacks the column win_a"):
        published("leakage_raw_rates")


def test_rate_above_100_is_named_with_its_line(project):
    edit(project, "GPT-4o,38.4,", "GPT-4o,138.4,")
    with pytest.raises(EvidenceError, match=r"line 2: win_a is 138.4; a rate is 0 to 100"):
        published("leakage_raw_rates")


def test_text_where_a_rate_should_be_is_refused(project):
    edit(project, "GPT-4o,38.4,", "GPT-4o,many,")
    with pytest.raises(EvidenceError, match="win_a is many"):
        published("leakage_raw_rates")


def test_duplicate_row_is_refused(project):
    path = project / "evidence" / "published" / "leakage_table1.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    with pytest.raises(EvidenceError, match="line 20 repeats a row"):
        published("leakage_table1")


def test_row_without_a_locator_is_refused(project):
    edit(project, "arXiv 2502.01534v3,Table 1", "arXiv 2502.01534v3,", name="leakage_table1")
    with pytest.raises(EvidenceError, match="empty cell in locator"):
        published("leakage_table1")


def test_unknown_table_offers_the_known_ones():
    with pytest.raises(ParameterError, match="leakage_table1"):
        published("leakage_tabel1")
