import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import EvidenceError
from reprolib.report.claims import VERDICTS, Claim, judge_claim, load_claims
from reprolib.report.site import PAPERS

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
    with pytest.raises(EvidenceError, match="registered twice"):
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
    with pytest.raises(EvidenceError, match=message):
        load_claims()


def test_every_paper_has_a_denominator():
    papers = Counter(c.paper for c in load_claims().values())
    assert set(papers) == set(PAPERS)
    assert min(papers.values()) >= 15, papers


def test_a_claim_that_only_our_judges_can_replicate_can_go_every_way():
    """Build an interval on either side of the criterion, and one across it: each must get its verdict."""
    recorded = [c for c in load_claims().values() if c.tier == "recorded" and not c.unclear]
    assert {c.kind for c in recorded} >= {"sign", "order", "size"}
    for claim in recorded:
        directed = claim.kind in ("sign", "order")
        assert directed or claim.width, f"{claim.id} needs a width"
        centre = claim.null if directed else claim.value
        half = 0.1 if directed else claim.width * 0.49
        step = (1 if claim.direction == "above" else -1) * (2 * half + 10**-claim.decimals)
        found = [
            judge_claim(claim, x, low=x - half, high=x + half, n=100, replication=True).name
            for x in (centre + step, centre, centre - step)
        ]
        expected = ["consistent", "inconclusive", "differs"] if directed else ["differs", "consistent", "differs"]
        assert found == expected, claim.id
        if not directed:
            wide = judge_claim(claim, centre, low=centre - 2 * half, high=centre + 2 * half, n=100, replication=True)
            assert wide.name == "inconclusive", claim.id


def test_an_informative_interval_around_a_printed_size_excludes_no_effect():
    def registered_here(claim):
        return claim.paper != "preference_leakage" or claim.id.startswith(("leakage.table6.", "leakage.table7."))

    sizes = [c for c in load_claims().values() if c.kind == "size" and c.tier == "recorded" and registered_here(c)]
    assert len(sizes) >= 40
    assert [c.id for c in sizes if c.value and c.width / 2 >= abs(c.value)] == []


@pytest.mark.parametrize(
    ("claim_id", "value", "decimals"),
    [
        ("cd.headline.v1", 11.3, 1),
        ("cd.headline.v2", 11.7, 1),
        ("cd.main.qwen14.greedy.spearman", 0.384, 3),
        ("cd.main.qwen14.assistant3.spearman", 0.433, 3),
        ("cd.ranges.greedy.lowest", 0.257, 3),
        ("cd.data.dev_items", 160, 0),
        ("overlap.data.cnn_dailymail.kept", 286, 0),
        ("overlap.data.summaries", 6744, 0),
        ("label.signature.knn5", 50.7, 1),
        ("leakage.table6.no_style.gpt_gemini", 9.0, 1),
        ("leakage.table7.contextual_calibration", 7.3, 1),
    ],
)
def test_registered_values_are_the_printed_ones(claim_id, value, decimals):
    claim = load_claims()[claim_id]
    assert (claim.value, claim.decimals) == (value, decimals)


@pytest.mark.parametrize(
    ("numerator", "denominator", "percent"),
    [
        ("cd.main.llama8.assistant1.pearson", "cd.main.llama8.greedy.pearson", 4.3),
        ("cd.main.llama8.assistant1.spearman", "cd.main.llama8.greedy.spearman", 5.4),
        ("cd.main.llama8.assistant1.kendall", "cd.main.llama8.greedy.kendall", 5.5),
        ("cd.main.llama8.assistant3.spearman", "cd.main.llama8.greedy.spearman", 2.7),
        ("cd.main.qwen14.assistant3.pearson", "cd.main.qwen14.greedy.pearson", 10.7),
        ("cd.main.qwen14.assistant3.spearman", "cd.main.qwen14.greedy.spearman", 12.8),
        ("cd.main.qwen14.assistant3.kendall", "cd.main.qwen14.greedy.kendall", 12.6),
        ("cd.ranges.contrastive.at_2_6", "cd.ranges.greedy.lowest", 17.5),
        ("leakage.table6.no_style.gpt_gemini", "leakage.table6.baseline.gpt_gemini", -49),
        ("leakage.table6.no_style.llama_gemini", "leakage.table6.baseline.llama_gemini", -22),
        ("leakage.table6.no_format.gpt_gemini", "leakage.table6.baseline.gpt_gemini", -44),
        ("leakage.table6.no_format.llama_gemini", "leakage.table6.baseline.llama_gemini", -23),
        ("leakage.table6.no_wording.gpt_gemini", "leakage.table6.baseline.gpt_gemini", -36),
        ("leakage.table6.no_wording.llama_gemini", "leakage.table6.baseline.llama_gemini", -3),
        ("leakage.table7.prompting", "leakage.table7.baseline", 3),
        ("leakage.table7.chain_of_thought", "leakage.table7.baseline", -12),
        ("leakage.table7.paraphrase", "leakage.table7.baseline", 5),
        ("leakage.table7.auto_calibration", "leakage.table7.baseline", 16),
        ("leakage.table7.contextual_calibration", "leakage.table7.baseline", -59),
    ],
)
def test_cells_give_the_relative_changes_noted_beside_them(numerator, denominator, percent):
    claims = load_claims()
    change = 100 * (claims[numerator].value / claims[denominator].value - 1)
    assert round(change, 1 if isinstance(percent, float) else 0) == percent


def test_registered_counts_add_up_as_the_protocols_say():
    value = {claim_id: claim.value for claim_id, claim in load_claims().items()}
    kept = value["overlap.data.cnn_dailymail.kept"] + value["overlap.data.wikisum.kept"]
    assert value["overlap.data.kept"] == kept
    assert value["overlap.data.summaries"] == 12 * kept  # a whole number of summaries an article
    assert value["label.design.sets"] == 30 * value["label.design.models"]
    assert value["label.design.blind_runs"] == 3 * value["label.design.sets"] * value["label.design.models"]
    assert value["cd.data.dev_items"] == 16 * value["cd.data.dev_articles"]
    best, worst = value["cd.ranges.greedy.highest"], value["cd.ranges.greedy.lowest"]
    assert value["cd.ranges.greedy.spread"] == pytest.approx(best - worst)
