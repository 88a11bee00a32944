"""The built site in a headless Chromium: every page, opened from the file system, with the network blocked."""

from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
NOT_PAGES = {"genindex.html", "search.html"}


def pages() -> list[Path]:
    built = [p for p in sorted(SITE.rglob("*.html")) if "_static" not in p.parts and p.name not in NOT_PAGES]
    return [p for p in built if "_sources" not in p.parts]


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """A function that opens a page; it records every request that leaves the file system and every script error."""
    contexts = []

    def open_(path, *, width=1280, theme="light", scripts=True):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, java_script_enabled=scripts, offline=True, color_scheme=theme
        )
        contexts.append(context)
        context.add_init_script(f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')")
        page = context.new_page()
        page.requested, page.failures = [], []
        page.on("request", lambda r: page.requested.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
        page.on("pageerror", lambda e: page.failures.append(str(e)))
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
