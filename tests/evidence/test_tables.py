import pandas as pd
import pytest

from reprolib.errors import EvidenceError
from reprolib.evidence import DIRECT, PAIRWISE, check_table


def row(schema, **values):
    return {**dict.fromkeys(schema.columns, 0), **values}


@pytest.mark.parametrize("schema", [PAIRWISE, DIRECT])
def test_extra_columns_pass_and_missing_ones_are_named(schema):
    table = pd.DataFrame([row(schema, verdict="A", extra=1)])
    assert check_table(table, schema, origin="t") is table
    with pytest.raises(EvidenceError, match="lacks the column judge"):
        check_table(table.drop(columns="judge"), schema, origin="t")


def test_a_row_given_twice_is_refused():
    table = pd.DataFrame([row(PAIRWISE, verdict="A")] * 2)
    with pytest.raises(EvidenceError, match="holds a row twice"):
        check_table(table, PAIRWISE, origin="t")
