"""The documentation's site as a person sees it, on a large screen and on a phone."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.browser.conftest import SCREENSHOTS
from tests.docs.pages import ROOT

pytestmark = pytest.mark.browser
PAGES = ("index", "files/levels", "files/archives", "models/quantise", "compared", "reference/options", "benchmarks")
CLIPPED = """() => [...document.querySelectorAll('.md-content .highlight:not(.language-text) pre > code')]
    .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"""
COVERED = """() => [...document.querySelectorAll('.md-content .language-text :is(.md-clipboard, .md-code__nav)')]
    .filter(one => one.getClientRects().length).map(one => one.parentElement.textContent)"""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that writes no log."""

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the site and serve it, since its search needs a server."""
    pytest.importorskip("mkdocs", reason="`make docs` installs what builds the site")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder], cwd=ROOT, check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_no_page_is_wider_than_its_window_and_no_code_is_clipped(browser: Any, site: str, width: int, scheme: str):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        page.goto(f"{site}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") == width, name
        assert page.evaluate(CLIPPED) == [], name
        assert page.evaluate(COVERED) == [], name
        page.screenshot(path=SCREENSHOTS / f"site-{name.replace('/', '-')}-{width}-{scheme}.png")


def test_search_finds_a_section(browser: Any, site: str):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{site}/index.html")
    page.click("input[name=query]")
    page.keyboard.type("take out one member")
    page.wait_for_selector(".md-search-result__item", timeout=120_000)
    assert "Folders and archives" in page.locator(".md-search-result__item").first.inner_text()
