"""Object files: names of symbols, places of relocations and sections follow from others, at any order of bytes."""

import struct

import numpy as np
import pytest

from squeeze.codecs.parse.program import fixed, headers, places, plan as plans, wrapper
from squeeze.codecs.parse.program.plan import Part, Plan
from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.protocol import Found
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from tests.makers import objects
from tests.references import naive_program

FILES = objects.object_files()
SIZE = 1 << 20
OF_ALL = {plans.ROWS, plans.SYMBOLS, plans.HEADERS}
KINDS = {
    "ELF x86-64": {plans.PLACES, plans.BEGINS, plans.COMMONS, plans.SYMBOLS, plans.HEADERS},
    "ELF AArch64": OF_ALL | {plans.WORDS, plans.COMMONS},
    "ELF ARM": OF_ALL | {plans.WORDS, plans.COMMONS},
}


def opened(data: bytes) -> tuple[Found, Plan]:
    found = Program().open(data, 0, Room(SIZE))
    assert found, "it stayed closed"
    return found, Plan.read(found.extra, found.content.size)


@pytest.mark.parametrize("name", FILES)
def test_an_object_file_is_opened_and_closed(name):
    found, plan = opened(FILES[name])
    assert str(plan) == name and {part.kind for part in plan.parts} == KINDS.get(name, OF_ALL)
    assert Program().close(found.content, found.content[:0], found.extra).tobytes() == FILES[name]


@pytest.mark.parametrize("name", FILES)
def test_an_object_file_is_closed_by_the_specification(name):
    found, _ = opened(FILES[name])
    assert naive_program.image(found.content.tobytes(), found.extra) == FILES[name]


def test_what_follows_from_others_becomes_small_numbers():
    found, plan = opened(FILES["ELF x86-64"])
    parts = {part.kind: found.content[part.start : part.end] for part in plan.parts if part.kind != plans.PLACES}
    assert set(parts[plans.SYMBOLS].reshape(-1, 24)[2:, 0].tolist()) == {1}
    assert not parts[plans.BEGINS].reshape(-1, 24)[:, :4].any()
    offsets = parts[plans.HEADERS].reshape(-1, 64)[2:, 24:32].view("<u8").ravel().tolist()
    assert offsets.count(0) >= len(offsets) - 3  # the first relocations, and the last section after them
    code = next(part for part in plan.parts if part.kind == plans.PLACES)
    passed = found.content[code.start : code.end].reshape(-1, 24)[:, :4].copy().view("<u4").ravel()
    assert np.count_nonzero(passed == 0) > 0.6 * passed.size and np.count_nonzero(passed >= 1 << 31) == 1


@pytest.mark.parametrize("is_big", [False, True])
@pytest.mark.parametrize("function", ["rows", "headers", "names"])
def test_any_bytes_come_back(function, is_big):
    chance = np.random.default_rng(5)
    strings = chance.integers(0, 3, 300, dtype=np.uint8)
    for row in (16, 24) if function == "names" else (40, 64) if function == "headers" else (4, 9, 24):
        for highest in (2, 256):
            raw = chance.integers(0, highest, 11 * row + 5, dtype=np.uint8)
            changed, others = raw.copy(), (strings,) if function == "names" else ()
            getattr(headers, function)(changed, *others, row, is_big, True)
            assert not np.array_equal(changed, raw)
            getattr(headers, function)(changed, *others, row, is_big, False)
            assert np.array_equal(changed, raw)


@pytest.mark.parametrize(("machine", "call"), [(2, 0x40000000), (3, 0x48000001), (5, 0xEB000000)])
@pytest.mark.parametrize("order", "<>")
def test_calls_of_one_function_become_alike_and_come_back(machine, call, order):
    step, most = (4, 0x3FFFFFC) if machine == 3 else (1, 0x3FFFFFFF if machine == 2 else 0xFFFFFF)
    words = np.array([call | (5_000 - place) * step & most for place in range(0, 400, 7)])
    raw = words.astype(f"{order}u4").view(np.uint8)
    code = np.zeros((words.size, 28), np.uint8)
    code[:, :4] = raw.reshape(-1, 4)
    code = code.ravel()
    before = code.copy()
    form = machine << 2 | fixed.PLACED | (fixed.LITTLE if order == "<" else 0)
    fixed.words(code, 4_096, form, True)
    assert len(np.unique(code.reshape(-1, 28)[:, :4].copy().view(">u4"))) == 1 and code[0] == call >> 24
    fixed.words(code, 4_096, form, False)
    assert np.array_equal(code, before)


def test_a_name_at_the_place_before_the_expected_one_comes_back():
    strings = np.frombuffer(b"\0ab\0cd\0", np.uint8)
    for values in ([1, 3, 4], [0, 0, 1], [1, 0, 3], [4, 6, 6]):
        raw = np.zeros((len(values), 16), np.uint8)
        raw[:, 0] = values
        changed = raw.copy().ravel()
        headers.names(changed, strings, 16, False, True)
        headers.names(changed, strings, 16, False, False)
        assert np.array_equal(changed, raw.ravel()), values


def test_places_in_any_order_come_back():
    chance, expected = np.random.default_rng(2), np.arange(5, 4_000, 9)
    table = np.zeros((300, 24), np.uint8)
    table[:, :4] = chance.choice(np.r_[expected, expected + 1], 300).astype("<u4").view(np.uint8).reshape(-1, 4)
    for listed in (expected, expected[:0]):
        changed = table.copy().ravel()
        assert places.places(changed, 24, listed, True)
        places.places(changed, 24, listed, False)
        assert np.array_equal(changed, table.ravel())
    table[7, 3] = 0x80
    assert not places.places(table.ravel(), 24, expected, True)


def test_numbers_of_another_table_stop_at_its_end():
    table = np.full(48, 255, np.uint8)
    table[[0, 24]] = 3
    table[[3, 27]] = 0
    places.places(table, 24, np.array([4, 8]), False)


def test_plans_that_read_others_too_often_are_refused():
    parts = tuple(Part(plans.PLACES, 24 * i, 24, (48, 0, 100)) for i in range(6))
    assert Plan.read(Plan(0, 2, 1, (), parts).to_bytes(), 600).parts == parts
    with pytest.raises(DamagedError, match="the plan of a program is impossible"):
        Plan.read(Plan(0, 2, 1, (), (*parts, Part(plans.SYMBOLS, 500, 24, (48, 0, 1)))).to_bytes(), 600)


def test_a_row_of_another_length_is_refused():
    for kind, form in ((plans.HEADERS, 50), (plans.SYMBOLS, 40), (plans.ROWS, 6)):
        numbers = (form, 0, 1) if kind == plans.SYMBOLS else (form,)
        with pytest.raises(DamagedError, match="the plan of a program is impossible"):
            Plan.read(Plan(0, 2, 1, (), (Part(kind, 0, 64, numbers),)).to_bytes(), 600)


def changed(name: str, field: int, value: int, kind: int = 4) -> list[bytes]:
    """Return an object file of 64 bits for each section of a kind, with 4 bytes of that section's header changed."""
    data, order = FILES[name], "<>"[FILES[name][5] - 1]
    (start,), (count,) = struct.unpack_from(order + "Q", data, 40), struct.unpack_from(order + "H", data, 60)
    rows = [
        at for at in range(start, start + 64 * count, 64) if struct.unpack_from(order + "I", data, at + 4) == (kind,)
    ]
    return [data[: at + field] + struct.pack(order + "I", value) + data[at + field + 4 :] for at in rows]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("ELF x86-64", 4, 9), ("ELF x86-64", 44, 1 << 31), ("ELF z/Architecture", 36, 2), ("ELF z/Architecture", 36, 4)],
    ids=["relocations without addends", "of no section", "shorter than half an address", "half an address"],
)
def test_object_files_with_unusual_headers_are_opened_and_closed(name, field, value):
    for data in changed(name, field, value):
        found, _ = opened(data)
        assert Program().close(found.content, found.content[:0], found.extra).tobytes() == data


def of_sections(before: bytes, rows: list[tuple[int, ...]]) -> bytes:
    """Return an object file of x86-64 with some bytes behind its header, and sections."""
    head = struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, 64 + len(before), 0, 64, 0, 0, 64, len(rows), 0)
    return b"\x7fELF\2\1\1" + bytes(9) + head + before + b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)


def test_tables_of_symbols_read_no_more_strings_than_the_image_has(monkeypatch):
    read, names = list[int](), headers.names
    monkeypatch.setattr(
        headers, "names", lambda table, strings, *rest: (read.append(strings.size), names(table, strings, *rest))
    )
    strings, count = b"A" * 4_000, 40
    rows = [(0, 3, 0, 0, 64, len(strings), 0, 0, 1, 0)]
    rows += [(0, 2, 0, 0, 64 + len(strings) + 72 * i, 72, 0, 0, 1, 24) for i in range(count)]
    data = of_sections(strings + bytes([1, *bytes(71)]) * count, rows)
    Program().open(data, 0, Room(SIZE))
    assert read and sum(read) <= len(data)


def test_derived_parts_are_tried_seldom(monkeypatch):
    tried = list[int]()
    monkeypatch.setattr(wrapper, "_is_derived", lambda raw, part, plan: tried.append(part.start))
    rows = [(0, 3, 0, 0, 64, 500, 0, 0, 1, 0), (0, 2, 0, 0, 64, 480, 0, 0, 1, 24)]
    rows += [(0, 0x6FFFFFF6, 0, 0, 564 + 40 * i, 40, 1, 0, 1, 0) for i in range(30)]
    data = bytearray(of_sections(bytes(1_800), rows))
    data[16] = 3  # a library
    Program().open(bytes(data), 0, Room(SIZE))
    assert len(tried) == plans.MOST_DERIVED


def test_headers_in_vain_take_room():
    room = Room(SIZE)
    assert Program().open(of_sections(bytes(600), [(0, 1, 0, 0, 64, 1 << 41, 0, 0, 1, 0)]), 0, room) is None
    assert room.attempts < Room(SIZE).attempts - SIZE // 2
