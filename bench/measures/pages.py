"""How soon pages open and answer, in Debian's Chromium, driven by Playwright.

Opening is from the request to the moment at which a page is drawn and takes keys; beside it stands what the page's
thread took of a processor meanwhile. Answering is from the event, which is a pointer over a unit or a click on a
matrix, to the end of the layout that follows. Scrolling moves a page's text by three quarters of a screen every frame
for some seconds: what counts are frames a second, and what the page's thread takes of a processor for one.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import squeeze
from bench.entry import Row
from bench.shared.texts import read
from squeeze.recipes.reports import page as reports
from squeeze.recipes.reports.read import read as runs_of, shown
from tests.makers.reports import model

_OPENED = "html[data-ready]"
_HOVERED = """async () => {
  const times = [], units = [...document.querySelectorAll(".u")].slice(0, 400);
  for (const unit of units.filter((_, i) => i % 4 === 0)) {
    const started = performance.now();
    unit.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
    document.getElementById("details").offsetHeight;
    times.push(performance.now() - started);
    await new Promise(requestAnimationFrame);
  }
  return times;
}"""
_CLICKED = """async () => {
  const times = [], buttons = [...document.querySelectorAll("#matrices tbody button")].slice(0, 40);
  for (const button of buttons) {
    const started = performance.now();
    button.click();
    document.getElementById("matrix").offsetHeight;
    times.push(performance.now() - started);
    await new Promise(requestAnimationFrame);
  }
  return times;
}"""
_SCROLLED = """async seconds => {
  const view = document.getElementById("view"), step = view.clientHeight * 0.75;
  const frames = [], started = performance.now();
  for (let before = started; before - started < 1000 * seconds;) {
    view.scrollTop = (view.scrollTop + step) % (view.scrollHeight - view.clientHeight);
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - before);
    before = now;
  }
  return frames.slice(1);
}"""


def rows(options: argparse.Namespace) -> Iterator[Row]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or sys.exit("Error: chromium is not installed")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for what, page in _pages(options):
            file = Path(name, "page.html")
            file.write_text(page)
            yield {"page": what, "bytes": file.stat().st_size} | _measured(browser, file, options)
        browser.close()


def _pages(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    runs = runs_of(options.run) if options.run else shown([model()])
    count = sum(len(run.matrices) for run in runs)
    yield f"report of {count} matrices", reports.render(runs)
    for size in map(int, filter(None, options.sizes.split(","))):
        data = read(options.file, "enwik8.10m", size)
        yield f"explain of {size / 1e6:g} MB", squeeze.explain(data, options.level).to_html()


def _measured(browser: Any, file: Path, options: argparse.Namespace) -> Row:
    opened, busy, found = [], [], {}
    for _ in range(options.runs):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        started = time.perf_counter()
        page.goto(file.absolute().as_uri())
        page.wait_for_selector(_OPENED)
        opened.append(time.perf_counter() - started)
        busy.append(_processor(session))
        is_explained = page.locator("#view").count()
        times = page.evaluate(_HOVERED if is_explained else _CLICKED)
        found = {"answer ms": round(statistics.median(times), 1), "slowest ms": round(max(times), 1)}
        if is_explained:
            before = _processor(session)
            frames = page.evaluate(_SCROLLED, options.seconds)
            each = 1000 * (_processor(session) - before) / len(frames)
            found |= {"frames a second": round(1000 * len(frames) / sum(frames), 1), "frame ms": round(each, 1)}
        page.close()
    return {"open seconds": round(min(opened), 3), "processor seconds": round(min(busy), 3), **found}


def _processor(session: Any) -> float:
    """Seconds that the page's thread has taken of a processor."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))
