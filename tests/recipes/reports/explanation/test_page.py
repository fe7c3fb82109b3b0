"""The HTML page of an explanation: it is self-contained and holds the whole explanation."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

import squeeze
from squeeze.recipes.reports.explanation import page
from tests.makers import inputs


def read(html: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the facts and columns of a page, as its script reads them."""
    facts = json.loads(re.search(r'<script id="facts"[^>]*>(.*?)</script>', html, re.DOTALL)[1])
    packed = re.search(r'<script id="columns"[^>]*>(.*?)</script>', html, re.DOTALL)[1]
    raw, offset, columns = zlib.decompress(base64.b64decode(packed)), 0, {}
    for name, kind, size in facts["columns"]:
        column = np.frombuffer(raw, f"<{kind}", size, offset)
        assert offset % column.itemsize == 0  # as typed arrays want it
        columns[name] = column
        offset += column.nbytes
    assert offset == len(raw)
    return facts, columns


def test_columns_are_the_units():
    text = inputs.words(3_000)
    explanation = squeeze.explain(text, 3, against=1)
    facts, columns = read(explanation.to_html())
    assert columns["data"].tobytes() == text
    assert np.abs(columns["bits"] / 256 - explanation.units.bits).max() <= 1 / 512
    assert columns["other_bits"].sum() / 256 == pytest.approx(explanation.against.bits, rel=0.01)
    where = explanation.units.lengths > 0
    assert np.array_equal((np.arange(len(text)) - columns["distances"])[where], explanation.units.sources[where])
    assert not {"symbols", "model_bits", "sizes"} & columns.keys()
    assert (facts["how"], facts["against"]) == (f"level {explanation.level}", "level 1")


def test_nothing_is_fetched():
    html = squeeze.explain(inputs.words(500), 1).to_html()
    assert not re.search(r"\b(src|href)=|https?:|@import|url\(", html)
    assert len(html) < 300_000


def test_what_a_file_says_stays_text(tmp_path):
    path = tmp_path / "a<b>&.txt"
    path.write_bytes(b"</script><script>alert(1)</script>" * 3)
    html = squeeze.explain(path, 1).to_html()
    assert "alert(1)" not in html
    assert "<title>a&lt;b&gt;&amp;.txt: where" in html


def test_refuses_a_page_above_its_limit(monkeypatch):
    monkeypatch.setattr(page, "_MOST", 1 << 20)
    explanation = squeeze.explain(b"abc" * 400_000, 1)
    with pytest.raises(squeeze.OptionError, match="a page shows 1 MiB at most: choose a part with `span`"):
        explanation.to_html()
