"""Pages of reports as a person sees them."""

from pathlib import Path
from typing import Any

import pytest

from squeeze.recipes.reports.page import render, shown
from tests.browser.conftest import Window
from tests.makers import reports

pytestmark = pytest.mark.browser
MODEL = reports.model()
PAGES = {
    "model": [MODEL],
    "compared": [MODEL, reports.model("small-3bit", 3, seed=1), reports.model("small-8bit", 8, seed=2)],
    "files": reports.files(),
    "caches": reports.caches(),
    "tensors": [reports.tensors()],
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")
    folder = tmp_path_factory.mktemp("pages")
    for name, records in PAGES.items():
        (folder / f"{name}.html").write_text(render(shown(records)))
    return {name: folder / f"{name}.html" for name in PAGES}


def opened(browser: Any, pages: dict[str, Path], name: str) -> Any:
    return Window(browser, pages[name]).page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", list(PAGES))
def test_it_opens_without_a_word_and_axe_finds_nothing_serious(browser, pages, name, scheme):
    window = Window(browser, pages[name], scheme)
    window.page.set_viewport_size({"width": 1440, "height": 1500})
    window.page.wait_for_selector("#parts-card[hidden], #parts svg", state="attached")
    window.keep(f"report-{name}-{scheme}")
    assert (window.serious(), window.said) == ([], [])


def cell(page: Any, layer: dict) -> Any:
    return page.locator(f"#map path[aria-roledescription='rect mark'] >> nth={MODEL['layers'].index(layer)}")


def test_a_click_shows_what_json_says(browser, pages):
    page = opened(browser, pages, "model")
    for number in (0, 5, 100, 209):
        layer = MODEL["layers"][number]
        cell(page, layer).click()
        said = page.inner_text("#matrix")
        assert said.startswith(layer["name"])
        assert f"{layer['error']:.2e}".replace("e-0", "e-") in said
        assert f"{layer['bits']:.3f}" in said and "576" in said
        assert all(note in said for note in layer["notes"])
    zeros = MODEL["layers"][209]["histogram"]["zeros"]
    assert f"0 before and {zeros[1]:,} after" in page.inner_text("#matrix")
    bars = page.locator("#distribution path[aria-roledescription='bar']")
    assert bars.count() == 48
    counts = MODEL["layers"][209]["histogram"]["before"]
    assert f"weights: {counts[24] / 1000:.3f}k" in bars.nth(24).get_attribute("aria-label")


def test_keys_move(browser, pages):
    page = opened(browser, pages, "model")
    page.focus("#map")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#matrix h3") == "model.layers.1.self_attn.q_proj"
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#matrix h3") == "model.layers.1.self_attn.k_proj"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.inner_text("#matrix h3") == "model.layers.1.self_attn.q_proj"


def test_the_map_shows_what_is_chosen(browser, pages):
    page = opened(browser, pages, "model")
    assert page.locator("#measure option").all_inner_texts() == [
        "error: share of the output lost",
        "bits a weight",
        "sparsity: share of zeros",
        "time, seconds",
    ]
    page.select_option("#measure", "seconds")
    page.wait_for_selector("#map text:has-text('time, seconds')")
    page.click("#theme")
    page.wait_for_selector("html[data-theme=dark]")
    assert page.locator("#map path[aria-roledescription='rect mark']").count() >= 210


def test_the_table_sorts_and_filters(browser, pages):
    page = opened(browser, pages, "model")
    page.click("text=All matrices")
    page.click("#matrices thead button:has-text('error')")
    worst = max(MODEL["layers"], key=lambda layer: layer["error"])
    assert page.inner_text("#matrices tbody tr:first-child th") == worst["name"]
    assert page.get_attribute("#matrices thead th:nth-child(2)", "aria-sort") == "descending"
    page.fill("#matrices input", "layers.7. down")
    assert page.inner_text("#matrices .note") == "1 of 210"
    page.click("#matrices tbody button")
    assert page.inner_text("#matrix h3") == "model.layers.7.mlp.down_proj"


def test_parts_are_all_bytes(browser, pages):
    page = opened(browser, pages, "model")
    page.wait_for_selector("#parts svg")
    labels = page.inner_text("#parts")
    assert "model.embed_tokens" in labels and "56.6 MB" in labels
    parts = page.locator("#parts g.mark-rect path").evaluate_all(
        "marks => marks.map(m => m.getAttribute('aria-label'))"
    )
    assert len(parts) == 1 + 210 + 1  # the embedding, and norms, which are shown as one
    assert sum(int(label.split(", ")[1].split()[0].replace(",", "")) for label in parts) == MODEL["stored_bytes"]


@pytest.mark.parametrize("name", ["model", "compared"])
def test_results_come_before_warnings_and_the_top_leads_to_them(browser, pages, name):
    page = opened(browser, pages, name)
    order = page.locator("section:visible").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    warned = [number for number, label in enumerate(order) if label.startswith("Fallbacks and warnings")]
    assert warned and min(warned) > order.index("Quality")
    page.click("header a")
    assert page.evaluate("document.querySelector(location.hash).className") == "card warnings"


@pytest.mark.parametrize("name", ["model", "compared"])
def test_charts_fit_a_window_of_400_pixels(browser, pages, name):
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(pages[name].absolute().as_uri())
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector("#parts svg")
    widths = page.locator(".chart svg").evaluate_all(
        "all => all.map(one => [one.parentElement.clientWidth, one.clientWidth])"
    )
    assert len(widths) >= 3
    assert [drawn for room, drawn in widths if drawn > room] == []
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_what_is_not_compressed_has_another_colour_than_any_shade(browser, pages):
    page = opened(browser, pages, "model")
    page.wait_for_selector("#parts svg")
    parts = page.locator("#parts g.mark-rect path").evaluate_all(
        "all => all.map(one => [one.getAttribute('aria-label').split(',')[0], one.getAttribute('fill')])"
    )
    grey = {fill for name, fill in parts if "embed_tokens" in name}
    shades = {fill for name, fill in parts if "_proj" in name}
    assert grey == {"#e4e6e8"} and shades and not grey & shades


def test_runs_compared(browser, pages):
    page = opened(browser, pages, "compared")
    names = [f"{number}. small-{bits}bit" for number, bits in enumerate((4, 3, 8), 1)]
    assert page.locator("#rows tbody th").all_inner_texts() == names
    front = page.locator("#front g.mark-line path")
    assert front.count() == 1
    page.select_option("#up", "agreement")
    page.wait_for_selector("#front text:has-text('more is better')")
    page.select_option("#against", "1")
    page.wait_for_selector("#map text:has-text('difference')")
    four, three = (shown([record])[0].matrices[0].values["error"] for record in PAGES["compared"][:2])
    label = page.locator("#map path[aria-roledescription='rect mark']").first.get_attribute("aria-label")
    assert f"{four - three:.2e}".replace("e-0", "e-") in label
    page.select_option("#run", "2")
    assert "8.250" in page.inner_text("#matrix")


def test_print_shows_everything(browser, pages):
    page = opened(browser, pages, "model")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('#map')).maxHeight") == "none"
    assert not page.is_visible("#measure")
