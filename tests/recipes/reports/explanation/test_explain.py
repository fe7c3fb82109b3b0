"""`squeeze.explain`: sums, blocks, compressed files, spans, and a comparison of levels."""

import dataclasses
import itertools
import json
import struct

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream import levels
from squeeze.recipes.reports.explanation.explanation import Explanation
from squeeze.recipes.reports.explanation.units import DICTIONARY
from tests.makers import inputs, tiny_models, wrapped
from tests.makers.cases import every

TEXT = inputs.words(6_000) + b"\nA line of its own.\n"


def agrees(explanation: Explanation) -> bool:
    """Check that every block's bits equal its payload, except for its content name and the end of its coder."""
    return all(-2 <= block.payload - block.bits / 8 <= 12 for block in explanation.blocks)


@pytest.mark.parametrize("level", [1, 3, 4])
def test_bits_add_up_to_the_coded_file(level):
    explanation = squeeze.explain(TEXT, level)
    assert agrees(explanation)
    assert explanation.coded_size == len(squeeze.compress(TEXT, level))
    assert len(explanation.units) == len(TEXT)
    assert explanation.bits == pytest.approx(sum(block.bits for block in explanation.blocks))
    assert explanation.bits_of_bytes.sum() == pytest.approx(explanation.bits)
    assert explanation.data == TEXT
    assert explanation.level in {
        row.number for row in levels.candidate_levels(levels.level(level), len(TEXT), levels.Looks(lambda: "text"))
    }


def test_noise_between_texts_is_a_stored_block():
    text = inputs.words(1 << 18)
    data = text + inputs.random_bytes(1 << 18) + text
    explanation = squeeze.explain(data, 1, threads=2)
    assert [block.codec for block in explanation.blocks] == ["bytewise", "stored", "bytewise"]
    assert agrees(explanation)
    assert explanation.by_content["stored"].bits_per_byte == 8
    assert sum(total.size for total in explanation.by_content.values()) == len(data)
    last = explanation.blocks[-1].start
    sources = explanation.units.sources
    assert sources[explanation.units.starts >= last].max() >= last
    assert (sources < explanation.units.starts).all()


@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)), b"\xff\xfe" * 50, inputs.machine_code(300)])
def test_every_input_has_bytes_json_and_a_page(data):
    explanation = squeeze.explain(data, 1)
    assert explanation.complete_bytes.tobytes() == data
    assert json.dumps(explanation.as_json())
    assert explanation.to_html().startswith("<!DOCTYPE html>")


def test_a_compressed_file_is_shown_as_it_was_written():
    plain, compressed = squeeze.explain(TEXT, 2), squeeze.explain(squeeze.compress(TEXT, 2))
    assert compressed.as_json() == plain.as_json()
    with pytest.raises(squeeze.LevelError, match=r"a \.sqz file says how it was written: leave out the level"):
        squeeze.explain(squeeze.compress(TEXT, 2), 3)


def test_damage_is_found():
    coded = bytearray(squeeze.compress(TEXT, 2))
    coded[len(coded) // 2] ^= 1
    with pytest.raises(squeeze.DamagedError):
        squeeze.explain(bytes(coded))


def test_a_span_shows_a_part_of_the_whole():
    whole, part = squeeze.explain(TEXT, 2), squeeze.explain(TEXT, 2, span=(1_000, 1_100))
    assert part.complete_bytes.tobytes() == TEXT[1_000:1_100]
    for field in dataclasses.fields(part.units):
        shown, all_of_it = getattr(part.units, field.name), getattr(whole.units, field.name)
        assert np.array_equal(shown, all_of_it[1_000:1_100], equal_nan=field.name == "model_bits")
    assert part.blocks == whole.blocks
    assert len(squeeze.explain(TEXT, 2, span=(10, 10)).units) == 0
    with pytest.raises(squeeze.OptionError, match="begins at byte 9000"):
        squeeze.explain(TEXT, 2, span=(9_000, None))


def test_another_level_is_compared():
    explanation = squeeze.explain(TEXT, 1, against=2)
    assert explanation.against is not None
    assert (explanation.level, explanation.against.level) == (1, 2)
    assert explanation.against.bits < explanation.bits
    assert explanation.as_json()["against"]["level"] == 2
    assert f"at level 1, and {explanation.against.coded_size:,} at level 2." in explanation.to_html()


def test_refuses_bad_levels_before_compressing(monkeypatch):
    monkeypatch.setattr("squeeze.recipes.reports.explanation.explain.compress_stream", None)
    with pytest.raises(squeeze.LevelError, match="level 12 does not exist"):
        squeeze.explain(TEXT, 1, against=12)
    with pytest.raises(squeeze.OptionError, match="level 1 uses no language model: compare models at levels 7 to 9"):
        squeeze.explain(TEXT, 1, against_model="tiny")
    with pytest.raises(squeeze.OptionError, match="begins at byte 9000"):
        squeeze.explain(TEXT, span=(9_000, None))


def test_a_dictionary_is_where_matches_point():
    samples = [b"%d bottles of beer on the wall, %d bottles of beer" % (n, n) for n in range(200)]
    dictionary = squeeze.train(samples, level=4)
    explanation = squeeze.explain(samples[0] + b" again", dictionary=dictionary)
    assert agrees(explanation)
    assert DICTIONARY in explanation.units.sources
    assert {"source": "dictionary", "length": 20} in explanation.as_json()["units"]["match"]


def test_totals_by_class_and_line():
    explanation = squeeze.explain(b"One two, 3\nfour\n" * 20, 1)
    sizes = {name: total.size for name, total in explanation.by_class.items()}
    assert sizes == {
        "first letters of words": 60,
        "later letters of words": 140,
        "digits": 20,
        "blanks": 40,
        "line ends": 40,
        "marks": 20,
    }
    assert squeeze.explain(inputs.records(60), 1).by_class == {}
    assert sum(total.bits for total in explanation.by_class.values()) == pytest.approx(explanation.bits)
    lines = explanation.lines
    assert lines.starts.tolist()[:3] == [0, 11, 16]
    assert lines.bits.sum() == pytest.approx(explanation.bits)
    assert explanation.summary()["dearest_lines"][0]["line"] == 1


def test_json_has_a_value_for_each_unit():
    record = squeeze.explain(TEXT, 3).as_json()
    assert {len(column) for column in record["units"].values()} == {len(TEXT)}
    assert sum(record["units"]["bits"]) == pytest.approx(record["bits"], rel=1e-3)
    assert json.loads(json.dumps(record)) == record


def test_progress_tells_every_pass():
    from squeeze.recipes.reports.explanation.explain import passes

    told: list[int] = []
    squeeze.explain(TEXT, 1, against=2, progress=told.append)
    assert sum(told) == passes(False, True) * len(TEXT)


def test_notebooks_show_the_page_in_a_frame():
    explanation = squeeze.explain(b"<b> & words </b>" * 9, 1)
    assert repr(explanation).startswith("<Explanation of bytes: 144 bytes, ")
    frame = explanation._repr_html_()
    assert frame.startswith("<iframe")
    assert "<b>" not in frame


CSV = b"time,place,note\n" + b"".join(
    b'2026-11-%02d,"Oslo, Norway",number %d\n' % (1 + i % 28, i * i) for i in range(200)
)


def test_bits_of_csv_add_up_by_column():
    explanation = squeeze.explain(CSV, 1)
    sums = explanation.by_column
    assert list(sums) == ["time", "place", "note"]
    assert sum(total.bits for total in sums.values()) == pytest.approx(explanation.bits)
    fields = [len(line.split(b",")[0]) + 1 for line in CSV.splitlines()]
    assert sums["time"].size == sum(fields)
    assert sums["note"].size == sum(len(line.rsplit(b",", 1)[1]) + 1 for line in CSV.splitlines())
    assert "columns" in explanation.table() and explanation.summary()["columns"]["place"]["bytes"] == sums["place"].size


@pytest.mark.parametrize("data", [TEXT, CSV[:100], b"a,b\n" * 4 + b"a\n" * 9, b"", inputs.random_bytes(500)])
def test_what_is_no_table_has_no_columns(data):
    explanation = squeeze.explain(data, 1)
    assert explanation.by_column == {} and explanation.summary()["columns"] == {}
    assert "\ncolumns" not in explanation.table()


def test_columns_without_names_and_with_other_separators():
    rows = b"".join(b"%d\t%d\t\n" % (i, i * 7 % 31) for i in range(40))
    assert list(squeeze.explain(rows, 1).by_column) == ["column 1", "column 2", "column 3"]
    part = squeeze.explain(CSV, 1, span=(len(b"time,place,note\n"), len(CSV)))
    assert list(part.by_column) == ["column 1", "column 2", "column 3"]
    assert squeeze.explain(CSV, 1, span=(20, len(CSV))).by_column == {}


def test_columns_of_binary_tables_are_places_in_the_record():
    rows = (struct.pack("<I7sHBI", 7 * i, b"name%03d" % (i % 90), i % 50, 255, 9 * i % 1000) for i in range(3_000))
    data = b"".join(rows)
    explanation = squeeze.explain(data, 1)
    (block,) = explanation.blocks
    record = int(block.content.removeprefix("table "))
    sums = explanation.by_column
    assert list(sums) == [f"byte {i} of {record}" for i in range(record)]
    assert sum(total.bits for total in sums.values()) == pytest.approx(explanation.bits)
    cells = dataclasses.replace(block, content=f"cells {record}")
    assert dataclasses.replace(explanation, blocks=(cells,)).by_column == sums
    part = squeeze.explain(data, 1, span=(record + 1, 5 * record + 1)).by_column
    assert {total.size for total in part.values()} == {4}
    assert part[f"byte 0 of {record}"].bits == pytest.approx(
        explanation.bits_of_bytes[record + 1 : 5 * record + 1][record - 1 :: record].sum()
    )


DOCUMENTS = wrapped.documents()


@pytest.mark.parametrize(("name", "level"), [*every(4, ((name, 3) for name in DOCUMENTS)), ("zip", 1), ("nested", 4)])
def test_wrappers_are_shown_opened_with_the_cost_of_each_byte(name, level):
    explanation = squeeze.explain(DOCUMENTS[name], level)
    assert explanation.wrappers and explanation.raw_size == len(DOCUMENTS[name])
    assert agrees(explanation)
    assert explanation.complete_bytes.tobytes() == explanation.data
    closing = [block for block in explanation.blocks if block.content == "closing of wrappers"]
    assert len(closing) == 1 and closing[0].size == 0
    assert explanation.bits + closing[0].bits == pytest.approx(sum(block.bits for block in explanation.blocks))
    assert -2 <= explanation.coded_size - sum(block.bits / 8 + block.overhead for block in explanation.blocks) <= 90
    assert squeeze.explain(squeeze.compress(DOCUMENTS[name], level)).as_json() == explanation.as_json()
    pieces = [(start, end) for start, end, _ in explanation.pieces]
    assert pieces[0][0] == 0 and pieces[-1][1] == len(explanation.data)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(pieces))


def test_contents_of_wrappers_are_sections():
    explanation = squeeze.explain(DOCUMENTS["zip"], 3)
    sections = [explanation.data[section.start : section.end] for section in explanation.sections]
    assert tuple(sections) == wrapped.TEXTS
    assert list(explanation.by_section) == [*(f"part-{number}.txt" for number in range(4)), "around wrappers"]
    assert sum(total.bits for total in explanation.by_section.values()) == pytest.approx(explanation.bits)
    assert explanation.by_class["blanks"].size == sum(text.count(b" ") for text in wrapped.TEXTS)
    assert explanation.table().splitlines()[1] == "opened: 4 zip members, 12,406 bytes with their contents"
    record = explanation.as_json()
    assert (record["raw_size"], record["opened_size"]) == (len(DOCUMENTS["zip"]), 12_406)
    assert record["wrappers"] == {"zip member": 4} and json.loads(json.dumps(record)) == record
    assert "with 4 zip members opened" in explanation.to_html()


def test_matches_point_into_other_contents():
    texts = {"one.txt": wrapped.TEXTS[0], "two.txt": wrapped.TEXTS[0]}
    explanation = squeeze.explain(wrapped.zip_archive(texts), 3)
    first, second = explanation.sections
    sources = explanation.units.sources[second.start + 50 : second.end]
    assert (sources - first.start == np.arange(50, len(wrapped.TEXTS[0]))).mean() > 0.9


def test_offsets_go_on_after_a_block_with_opened_wrappers():
    data = wrapped.gzip_file(inputs.words(40_000)) + b"plain text, plain words " * 900
    size = len(wrapped.gzip_file(inputs.words(40_000)))
    compressed = squeeze.compress(data, 1, block_size=size)
    explanation = squeeze.explain(compressed)
    assert explanation.data.endswith(data[size:]) and explanation.raw_size == len(data)
    assert len(explanation.data) > len(data) and agrees(explanation)
    with pytest.raises(squeeze.OptionError, match="expected a range within"):
        squeeze.explain(compressed, span=(len(explanation.data) + 1, None))
    part = squeeze.explain(compressed, span=(len(data) + 10, len(data) + 20))
    assert part.complete_bytes.tobytes() == explanation.data[len(data) + 10 : len(data) + 20]


def test_wrappers_stay_closed_on_request_and_in_comparisons():
    explanation = squeeze.explain(DOCUMENTS["zip"], 3, against=1)
    assert explanation.against is not None and explanation.against.data == explanation.data
    closed = squeeze.explain(DOCUMENTS["zip"], 3, parse=False, against=1)
    assert closed.against is not None
    assert closed.data == closed.against.data == DOCUMENTS["zip"] and not closed.wrappers
    compressed = squeeze.explain(squeeze.compress(DOCUMENTS["zip"], 3), against=1)
    assert compressed.against is not None and compressed.against.data == explanation.data
    with pytest.raises(squeeze.LevelError, match="leave out the level"):
        squeeze.explain(squeeze.compress(TEXT, 2), parse=False)


def test_tokens_that_continue_in_another_wrapper_are_divided(tmp_path):
    model = tiny_models.write_gguf(tmp_path / "tiny.gguf", tiny_models.byte_level())
    data = wrapped.zip_archive({"a.txt": inputs.PROSE[:1500], "b.txt": inputs.PROSE[1500:]})
    explanation = squeeze.explain(data, 8, model=model)
    assert explanation.raw_size == len(data)
    assert len(explanation.bits_of_bytes) == len(explanation.data)
    assert explanation.bits == pytest.approx(sum(block.bits for block in explanation.blocks if block.size), rel=1e-5)
