import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ClaimError
from reprolib.report.claims import VERDICTS, Claim, judge_claim, load_claims

BASE = {"id": "demo.claim", "paper": "demo", "locator": "Table 1", "statement": "s"}
RATE = Claim(**BASE, kind="rate", value=18.4, decimals=1, slack=0.1, width=5)
SIZE = Claim(**BASE, kind="size", value=20.0, decimals=1, width=10)
SIGN = Claim(**BASE, kind="sign", null=0.0)


@given(st.floats(-100, 100), st.integers(0, 3))
def test_the_true_value_behind_a_print_is_always_reproduced(x, decimals):
    claim = Claim(**BASE, kind="rate", value=float(f"{x:.{decimals}f}"), decimals=decimals)
    assert judge_claim(claim, x).name in ("reproduced", "differs")
    if abs(x - claim.value) < 0.499 * 10**-decimals:  # away from the edge, where the print itself is ambiguous
        assert judge_claim(claim, x).name == "reproduced"
    assert judge_claim(claim, x + 1.01 * 10**-decimals).name == "differs"


def test_rounded_inputs_excuse_a_difference_only_up_to_the_registered_slack():
    assert judge_claim(RATE, 18.47).name == "differs"
    assert judge_claim(RATE, 18.47, inputs=(18.3, 18.6)).name == "reproduced"
    assert judge_claim(RATE, 18.60, inputs=(18.0, 19.2)).name == "differs"


def test_a_replication_is_never_reproduced():
    assert judge_claim(RATE, 18.4, low=17, high=20, n=500, replication=True).name == "consistent"
    assert judge_claim(RATE, 18.4, low=10, high=27, n=500, replication=True).name == "inconclusive"
    assert judge_claim(RATE, 30.0, low=28, high=32, n=500, replication=True).name == "differs"


def test_a_size_needs_an_interval_that_holds_the_value_and_is_narrow():
    assert judge_claim(SIZE, 21, low=17, high=25, n=100).name == "consistent"
    assert judge_claim(SIZE, 30, low=25, high=34, n=100).name == "differs"
    wide = judge_claim(SIZE, 21, low=10, high=30, n=100)
    assert (wide.name, wide.n_needed) == ("inconclusive", 400)  # half the width takes four times the questions


def test_a_sign_needs_the_whole_interval_on_its_side():
    assert judge_claim(SIGN, 2, low=1, high=3, n=10).name == "consistent"
    assert judge_claim(SIGN, -2, low=-3, high=-1, n=10).name == "differs"
    open_ = judge_claim(SIGN, 1, low=-1, high=3, n=10)
    assert (open_.name, open_.n_needed) == ("inconclusive", 40)
    below = Claim(**BASE, kind="sign", null=0.0, direction="below")
    assert judge_claim(below, -2, low=-3, high=-1, n=10).name == "consistent"


def test_an_interval_that_ends_within_its_jitter_of_the_null_is_inconclusive():
    verdict = judge_claim(SIGN, 4, low=0.01, high=8, n=10, jitter=0.06)
    assert verdict.name == "inconclusive"
    assert "depends on the seed" in verdict.reason
    assert judge_claim(SIGN, 4, low=0.2, high=8, n=10, jitter=0.06).name == "consistent"


def test_counts_are_exact_and_undefined_values_are_not_zero():
    count = Claim(**BASE, kind="count", value=4)
    assert judge_claim(count, 4).name == "reproduced"
    assert judge_claim(count, 5).name == "differs"
    assert judge_claim(count, math.nan).name == "inconclusive"


def test_no_verdict_without_an_interval_where_the_criterion_needs_one():
    assert judge_claim(SIGN, 4).name == "inconclusive"
    assert judge_claim(SIZE, 20).name == "inconclusive"


def test_an_unclear_claim_stays_unclear_whatever_the_value():
    claim = Claim(**BASE, kind="size", unclear="the paper does not define the set")
    assert judge_claim(claim, 1.0, low=0, high=2, n=5).name == "paper unclear"


def test_registered_claims_are_complete():
    claims = load_claims()
    assert len(claims) >= 28
    assert all(c.statement.endswith(".") for c in claims.values())
    assert len(VERDICTS) == 6


def register(project, text):
    path = project / "evidence" / "claims.toml"
    path.write_text(path.read_text() + text)


def test_claim_registered_twice_is_an_error(project):
    first = (project / "evidence" / "claims.toml").read_text().split("[[claim]]")[1]
    register(project, "\n[[claim]]" + first)
    with pytest.raises(ClaimError, match="registered twice"):
        load_claims()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('kind = "rate"', "a rate needs the published value"),
        ('kind = "size"\nvalue = 1.0', "informative"),
        ('kind = "sign"\nvalu = 1.0', "valu"),
        ('kind = "guess"', "kind"),
    ],
)
def test_incomplete_claims_say_which_field(project, entry, message):
    register(project, f'\n[[claim]]\nid = "demo.x"\npaper = "p"\nlocator = "l"\nstatement = "s."\n{entry}\n')
    with pytest.raises(ClaimError, match=message):
        load_claims()
