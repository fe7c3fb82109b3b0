"""The page of `squeeze explain` as a person sees it."""

import struct
from pathlib import Path
from typing import Any

import pytest

import squeeze
from squeeze.recipes.reports.explanation.explanation import Explanation
from tests.browser.conftest import Window
from tests.makers import inputs, wrapped

pytestmark = pytest.mark.browser

TEXT = "Grüße aus dem Süden: 日本語, zażółć.\n".encode() + inputs.PROSE * 3 + inputs.python_text(60_000)


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    return squeeze.explain(TEXT, 3, against=1)


@pytest.fixture(scope="module")
def file(explanation: Explanation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(explanation.to_html())
    return path


@pytest.fixture
def window(browser: Any, file: Path) -> Window:
    return Window(browser, file)


def test_contents_of_wrappers_have_headings(browser, tmp_path):
    path = tmp_path / "zip.html"
    path.write_text(squeeze.explain(wrapped.documents()["zip"], 3).to_html())
    window = Window(browser, path)
    window.keep("explain-zip")
    assert "part-0.txt" in [heading.inner_text() for heading in window.page.query_selector_all("#rows strong")]
    window.page.focus("#view")
    for _ in range(5):
        window.page.keyboard.press("ArrowDown")
    assert "part-0.txt + 0x" in described(window)
    assert window.serious() == [] and window.said == []


def described(window: Window) -> str:
    return window.page.inner_text("#details")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_a_word_and_axe_finds_nothing_serious(browser, file, scheme):
    window = Window(browser, file, scheme)
    window.keep(f"explain-{scheme}")
    assert window.serious() == []
    window.page.select_option("#measure", "difference")
    assert window.serious() == []
    window.keep(f"explain-difference-{scheme}")
    assert window.said == []


def test_hover_says_what_json_says(window, explanation):
    columns = explanation.as_json()["units"]
    for unit in (0, 60, 205, 1_000, 1_717):
        window.page.hover(f'.u[data-u="{unit}"]')
        said = described(window)
        assert f"{columns['bits'][unit]:.2f} bits" in said
        assert f"byte {columns['start'][unit]:,} " in said
        for part, share in columns["parts"][unit].items():
            assert part in said or abs(share) < 0.1
        if columns["match"][unit]:
            assert f"Match at byte {columns['match'][unit]['source']:,}" in said


def test_keys_move_and_follow_matches(window, explanation):
    page = window.page
    page.focus("#view")
    page.keyboard.press("ArrowRight")
    assert "byte 1 " in described(window)
    page.keyboard.press("ArrowDown")
    assert "line 2, column 2" in described(window) or "line 1, column" in described(window)
    page.keyboard.press("End")
    assert f"byte {len(TEXT) - 1:,} " in described(window)
    matched = next(i for i in range(len(TEXT) - 1, 0, -1) if explanation.units.lengths[i])
    for _ in range(len(TEXT) - 1 - matched):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert f"byte {explanation.units.sources[matched]:,} " in described(window)
    page.keyboard.press("Backspace")
    assert f"byte {matched:,} " in described(window)


def test_brushing_moves_the_text(window):
    page = window.page
    box = page.locator("#curve").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 40)
    page.mouse.up()
    page.wait_for_function("document.getElementById('view').scrollTop > 1000")
    page.wait_for_function("Number(document.getElementById('curve').getAttribute('aria-valuenow')) > 30000")
    page.focus("#curve")
    page.keyboard.press("Home")
    page.wait_for_function("document.getElementById('view').scrollTop === 0")


def test_characters_are_whole(window, explanation):
    assert "Grüße aus dem Süden: 日本語, zażółć." in window.page.inner_text("#rows")
    place = TEXT.index("日".encode())
    window.page.hover(f'.u[data-u="{place}"]')
    assert "hex e6 97 a5" in described(window)
    assert f"{explanation.bits_of_bytes[place : place + 3].sum():.2f} bits" in described(window)


def test_columns_of_text_have_their_names(browser, tmp_path):
    rows = b"".join(b"%d,%s,%d\n" % (i, [b"red", b"green"][i % 2], i * i) for i in range(80))
    path = tmp_path / "columns.html"
    path.write_text(squeeze.explain(b"number,colour,square\n" + rows, 1).to_html())
    window = Window(browser, path)
    place = len(b"number,colour,square\n0,")
    window.page.hover(f'.u[data-u="{place}"]')
    assert "line 2, column 3, field colour" in described(window)
    assert "square" in window.page.inner_text("aside") and (window.serious(), window.said) == ([], [])


def test_text_wraps_in_a_window_of_400_pixels(browser, file):
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(file.absolute().as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate("document.getElementById('view').scrollWidth <= document.getElementById('view').clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_binaries_are_hex(browser, tmp_path):
    path = tmp_path / "binary.html"
    rows = (struct.pack("<IH5sI", 1000 + 3 * i, i % 7, b"item%d" % (i % 10), i * i % 5000) for i in range(500))
    path.write_text(squeeze.explain(b"".join(rows), 1).to_html())
    window = Window(browser, path)
    first = window.page.inner_text(".row >> nth=0")
    assert first.split()[:4] == ["0e8", "03", "00", "00"]  # after the offset, 0
    assert len(first.split()) > 14  # whole records of 15 bytes
    window.keep("explain-binary")
    assert (window.serious(), window.said) == ([], [])


def test_an_empty_file(browser, tmp_path):
    path = tmp_path / "empty.html"
    path.write_text(squeeze.explain(b"", 1).to_html())
    window = Window(browser, path)
    assert (window.serious(), window.said) == ([], [])


def test_print_shows_rows_after_each_other(window):
    window.page.emulate_media(media="print")
    window.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert window.page.locator(".row").count() > 100
    assert window.page.evaluate("getComputedStyle(document.querySelector('.row')).position") == "static"
