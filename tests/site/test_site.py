"""What a reader meets: run by `make check-site` on the site that `make report` built."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from .conftest import SITE, pages

ROOT = SITE.parents[1]
pytestmark = pytest.mark.site
# Left by the theme: its title stands outside a landmark. The bibliography's roles are those of docutils: not checked.
KNOWN_AXE = {"region"}
CHECKED = "{exclude: [['.citation-list']]}"


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.ids, self.images = [], set(), []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag == "img" or attributes.get("role") == "img":
            self.images.append(attributes)


def parsed(path):
    parser = Links()
    parser.feed(path.read_text())
    return parser


def test_the_site_was_built():
    assert (SITE / "index.html").is_file(), "run `make report` first"
    assert len(pages()) >= 9


def test_internal_links_lead_somewhere():
    ids = {p: parsed(p).ids for p in SITE.rglob("*.html")}
    broken = []
    for page in pages():
        for link in parsed(page).links:
            address, anchor = urldefrag(link)
            if re.match(r"[a-z]+:", address):
                continue
            target = (page.parent / unquote(address)).resolve() if address else page
            if not target.exists() or (anchor and target.suffix == ".html" and unquote(anchor) not in ids[target]):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_every_picture_has_alt_text_of_its_own():
    for page in pages():
        alts = [i.get("aria-label") or i.get("alt") for i in parsed(page).images if "logo" not in str(i.get("class"))]
        assert all(alt and len(alt) > 20 and not re.search(r"\.(png|svg)$", alt) for alt in alts), page.name
        assert len(set(alts)) == len(alts), f"{page.name}: two pictures share their alt text"


def test_numbers_on_pages_equal_the_results():
    shown = {}
    for page in (SITE / "chapters").glob("*.html"):
        shown |= dict(re.findall(r'<span data-claim="([^"]+)">([^<]+)</span>', page.read_text()))
    results = [r for f in (ROOT / "_build/results").glob("*.json") for r in json.loads(f.read_text())["results"]]
    assert shown == {f"{r['claim_id']} {r['tier']} {r['judge']}": r["shown"] for r in results}
    for r in results:
        assert float(r["shown"].split(" ")[0]) == pytest.approx(r["value"], abs=0.51)


def test_the_checklist_was_written_for_the_verdicts_that_the_ledger_shows():
    page = (SITE / "is_my_leaderboard_leaking.html").read_text()
    written = {claim: verdict for verdict, claim in re.findall(r'data-verdict="([^"]+)" href="[^"#]+#([^"]+)"', page)}
    rows = json.loads((ROOT / "book/generated/ledger.json").read_text())
    shown = {"claim-" + re.sub(r"[^a-z0-9]+", "-", r["claim_id"]): r["verdict"] for r in reversed(rows)}
    assert len(written) >= 12
    assert written == {claim: shown[claim] for claim in written}


def test_no_number_is_missing_from_a_sentence():
    for page in (SITE / "chapters").glob("*.html"):
        text = page.read_text()
        assert "glue:" not in text
        assert "pasted-text" in text
        assert not re.search(r'<span class="pasted-text">\s*</span>', text)


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.stem)
def test_pages_work_offline_on_a_phone_and_on_a_desk_in_light_and_dark(page, open_page):
    axe = Path(__import__("axe_playwright_python").__file__).with_name("axe.min.js").read_text()
    for width, theme in ((1280, "light"), (1280, "dark"), (375, "light"), (375, "dark")):
        opened = open_page(page, width=width, theme=theme)
        assert opened.requested == []
        assert opened.failures == []
        overflow = opened.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{page.name} is {overflow} px too wide at {width}"
        opened.evaluate(axe)
        found = opened.evaluate(f"axe.run({CHECKED}).then((r) => r.violations.map((v) => [v.id, v.nodes[0].html]))")
        assert [v for v in found if v[0] not in KNOWN_AXE] == [], f"{page.name} at {width} px, {theme}"


def test_a_reader_reaches_a_verdict_in_three_clicks(open_page):
    page = open_page(SITE / "index.html")
    page.locator(".sd-card", has_text="I want to know what holds").click()
    page.click("table.ledger tbody tr >> nth=0 >> a")
    assert "leakage_main.html#claim-" in page.url
    assert page.locator("tr:target .verdict").inner_text().strip() == "✓ reproduced"


def test_the_ledger_filters(open_page):
    page = open_page(SITE / "generated" / "ledger.html")
    rows = page.locator("table.ledger tbody tr")
    page.select_option("select[data-filter=verdict]", "inconclusive")
    visible = [rows.nth(k) for k in range(rows.count()) if rows.nth(k).is_visible()]
    assert 0 < len(visible) < rows.count()
    assert {row.locator(".verdict").inner_text().strip() for row in visible} == {"? inconclusive"}


class TestSliders:
    PAGE = SITE / "chapters" / "leakage_main.html"

    def test_they_start_at_the_printed_number_and_follow_the_keyboard(self, open_page):
        page = open_page(self.PAGE)
        answer = page.locator("#whatif-pls output.result")
        assert answer.inner_text() == "28.7"  # Table 1, first cell
        slider = page.locator("#whatif-pls-a")
        slider.focus()
        page.keyboard.press("Home")  # a = 0: the GPT-4o student never wins under its own judge
        expected = 50 * (-1 + (42.0 - 27.0) / (42.0 + 27.0))
        assert float(answer.inner_text()) == pytest.approx(expected, abs=0.05)
        page.locator("#whatif-pls-b").focus()
        page.keyboard.press("Home")
        assert answer.inner_text() == "undefined"

    def test_without_scripts_a_table_stands_in(self, open_page):
        page = open_page(self.PAGE, scripts=False)
        table = page.locator("noscript table, .cell_output table").filter(has_text="28.7")
        assert table.count() > 0
        assert page.locator("#whatif-pls output.result").inner_text() == "28.7"
