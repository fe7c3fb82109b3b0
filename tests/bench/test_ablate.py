"""What is left out of levels 4 to 6, and of a dictionary."""

import io
from pathlib import Path

import pytest

import squeeze
from bench.__main__ import parser
from bench.measures.ablate import BUILT_IN, TAUGHT, variants
from bench.registry import ENTRIES
from squeeze.codecs.stream.index import read_index
from tests.makers import inputs


def test_what_is_built_in_is_left_out_in_parts_and_as_a_whole() -> None:
    found = {variant.without: variant for variant in variants(5, "text", each=False)}
    assert [*found][:4] == ["nothing", BUILT_IN, TAUGHT, "network"]
    assert found["nothing"].start and not found[TAUGHT].start
    assert [found[name].preset.network for name in found][:4] == [True, False, True, False]
    assert not any(preset.taught for preset in (found[BUILT_IN].preset, found[TAUGHT].preset))
    assert BUILT_IN not in {variant.without for variant in variants(4, "table", each=False)}


def test_the_parts_of_a_dictionary(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(inputs.PROSE[:800])
    squeeze.train([inputs.PROSE[800:], inputs.words(3_000)], tmp_path / "own.sqzp", level=4)
    entry = ENTRIES["ablate"]
    words = [str(tmp_path / "file"), "--dictionary", str(tmp_path / "own.sqzp")]
    found = list(entry.rows("ablate")(parser("ablate", entry).parse_args(words)))
    assert not any(map(entry.keeps, found))
    names = ["nothing", "the dictionary's text", "what it taught mixers", "the dictionary"]
    assert [(row["without"], row["level"], row["of"]) for row in found] == [(name, 4, 800) for name in names]
    (stream,) = read_index(io.BytesIO(squeeze.compress(inputs.PROSE[:800], 4)))
    assert found[0]["bytes"] < found[-1]["bytes"] == stream.blocks[0].payload_length - 1  # the kind of content


def test_the_parts_of_a_dictionary_on_records() -> None:
    entry = ENTRIES["ablate-dictionary"]
    words = "--sets events --level 4 --train 60 --records 3"
    found = list(entry.rows("ablate-dictionary")(parser("ablate-dictionary", entry).parse_args(words.split())))
    names = ["nothing", "the dictionary's text", "what it taught mixers", "the dictionary"]
    assert [(row["without"], row["records"], row["trained"]) for row in found] == [(name, 3, 60) for name in names]
    assert found[0]["bytes"] < min(row["bytes"] for row in found[1:]) and found[-1]["bytes"] < found[0]["raw"]
    assert found[-1]["saves"] == pytest.approx(found[-1]["bytes"] / found[0]["bytes"] - 1, abs=1e-3)
