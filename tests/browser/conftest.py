"""A browser for the tests of pages: Debian's Chromium, driven by Playwright. Where one of both is missing, they are
skipped."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


class Window:
    """An open page that records the messages of its console."""

    def __init__(self, browser: Any, file: Path, scheme: str = "light"):
        self.said: list[str] = []
        self.page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(file.absolute().as_uri())
        self.page.wait_for_selector("html[data-ready]")

    def serious(self) -> list[str]:
        """Return the faults that axe-core calls serious or critical."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing")
        found = axe.Axe().run(self.page).response["violations"]
        return [one["id"] for one in found if one["impact"] in ("serious", "critical")]

    def keep(self, name: str) -> None:
        """Write a screenshot to build/screenshots."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")
