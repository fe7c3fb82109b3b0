"""Programs are found, opened by their sections, and closed to the same bytes; damaged ones are too, or stay closed."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from squeeze.codecs.content import ABSOLUTE, Content
from squeeze.codecs.parse import outline
from squeeze.codecs.parse.program import plan as plans
from squeeze.codecs.parse.program.plan import Part, Plan, Segment
from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.protocol import Found
from squeeze.codecs.parse.room import Room
from squeeze.codecs.stream import opened
from squeeze.errors import DamagedError, SqueezeError
from tests.codecs.parse import trees
from tests.makers import inputs, programs, wrapped
from tests.references import naive_program

IMAGES = programs.images()
SIZE = 1 << 20
OF_ELF = {plans.FRAMES, plans.FRAME_INDEX, plans.HASH, plans.SYMBOLS, plans.HEADERS}
KINDS = {
    "ELF x86-64": OF_ELF | {plans.X86_64, plans.RELOCATIONS},
    "ELF x86": OF_ELF | {plans.X86, plans.ROWS},
    "ELF AArch64": OF_ELF | {plans.ARM64, plans.RELOCATIONS},
    "ELF RISC-V": OF_ELF | {plans.RISCV, plans.RELOCATIONS},
    "PE x86-64": {plans.X86_64, plans.ROWS},
    "PE x86": {plans.X86},
    "PE AArch64": {plans.ARM64},
    "Mach-O x86-64": {plans.X86_64, plans.FRAMES},
    "Mach-O AArch64": {plans.ARM64, plans.FRAMES},
}


def opened_image(data: bytes, start: int = 0) -> Found:
    found = Program().open(data, start, Room(SIZE))
    assert found, "it stayed closed"
    return found


def plan_of(found: Found) -> Plan:
    return Plan.read(found.extra, found.content.size)


def closed(found: Found) -> bytes:
    return Program().close(found.content, found.content[:0], found.extra).tobytes()


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_opened_with_all_that_its_format_has_and_closed(name):
    found = opened_image(IMAGES[name])
    assert str(plan_of(found)) == name
    assert {part.kind for part in plan_of(found).parts} == KINDS[name]
    assert closed(found) == IMAGES[name]


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_closed_by_the_specification(name):
    found = opened_image(IMAGES[name])
    assert naive_program.image(found.content.tobytes(), found.extra) == IMAGES[name]


def test_the_tables_that_follow_from_others_are_left_out():
    found = opened_image(IMAGES["ELF x86-64"])
    removed = {part.kind: part.removed for part in plan_of(found).parts if part.removed}
    assert removed.keys() == {plans.HASH, plans.FRAME_INDEX}
    assert found.content.size == len(IMAGES["ELF x86-64"]) - sum(removed.values())


def test_a_table_that_does_not_follow_stays():
    image = bytearray(IMAGES["ELF x86-64"])
    part = next(part for part in plan_of(opened_image(image)).parts if part.kind == plans.HASH)
    image[part.end - 3] ^= 1
    found = opened_image(bytes(image))
    assert plans.HASH not in {part.kind for part in plan_of(found).parts} and closed(found) == image


def test_calls_of_one_function_are_alike_and_addends_are_zeros():
    found = opened_image(IMAGES["ELF x86-64"])
    parts = {part.kind: part for part in plan_of(found).parts}
    shift = parts[plans.HASH].removed
    table = found.content[parts[plans.RELOCATIONS].start - shift :][: parts[plans.RELOCATIONS].size].view("<u8")
    assert not table[2::3].any() and set(table[3::3].tolist()) == {8}
    code = found.content[parts[plans.X86_64].start - shift :][: parts[plans.X86_64].size].tobytes()
    targets = [code[at + 1 : at + 5] for at in range(len(code) - 5) if code[at : at + 3] == b"\xe8\0\0"]
    assert len(targets) > 50 > 15 > len(set(targets))


def test_the_sections_have_kinds_of_content():
    regions = opened_image(IMAGES["ELF x86-64"]).regions
    assert {content for _, _, content in regions} == {
        *(Content("executable", 0, ABSOLUTE), Content("text"), Content("table", 24), Content("table", 64)),
    }
    assert all(before[1] <= after[0] for before, after in pairwise(regions))


@pytest.mark.parametrize("name", IMAGES)
def test_a_part_of_an_image_is_closed_to_the_same_part(name):
    image = IMAGES[name]
    for size in range(600, len(image), 1_371):
        found = Program().open(image[:size], 0, Room(SIZE))
        assert found is None or closed(found) == image[: found.size]


@pytest.mark.parametrize("name", IMAGES)
def test_damaged_images_are_closed_to_the_same_bytes_or_not_opened(name):
    chance, count = np.random.default_rng(7), 0
    for _ in range(150):
        image = bytearray(IMAGES[name])
        for _ in range(chance.integers(1, 4)):
            near = int(chance.choice([64, 400, len(image)]))
            place = (
                len(image) - 1 - int(chance.integers(900)) if chance.integers(3) == 0 else int(chance.integers(near))
            )
            image[place] = int(chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.integers(256)]))
        found = Program().open(bytes(image), 0, Room(SIZE))
        count += found is not None
        assert found is None or closed(found) == image[: found.size]
    assert count > 30


def test_damaged_plans_are_refused_or_give_another_image():
    found, chance, refused = opened_image(IMAGES["ELF x86-64"]), np.random.default_rng(0), 0
    for _ in range(400):
        extra = bytearray(found.extra)
        extra[chance.integers(len(extra))] ^= int(chance.integers(1, 256))
        try:
            image = Program().close(
                found.content, found.content[:0], bytes(extra[: chance.integers(1, len(extra) + 1)])
            )
            assert image.size <= 2 * found.content.size
        except SqueezeError as error:
            refused += 1
            assert str(error).isprintable()
    assert refused > 100


@pytest.mark.parametrize("change", ["derived", "segments"])
def test_plans_that_would_take_long_are_refused(change):
    plan = Plan(0, 2, 3, (), tuple(Part(plans.HASH, 16 * i, 16, (1, 0, 600, 0, 600)) for i in range(8)))
    assert Plan.read(plan.to_bytes(), 600) == plan
    if change == "derived":
        worse = replace(plan, parts=(*plan.parts, Part(plans.HASH, 200, 16, (1, 0, 600, 0, 600))))
    else:
        worse = replace(plan, segments=tuple(Segment(i, 0, 1) for i in range(129)))
    with pytest.raises(DamagedError, match="the plan of a program is impossible"):
        Plan.read(worse.to_bytes(), 600)


def test_images_are_found_in_archives_and_between_other_bytes():
    archive = wrapped.zip_archive({name: image for name, image in IMAGES.items() if "x86" not in name or "64" in name})
    data = inputs.words(900) + IMAGES["PE x86"] + b"between" + IMAGES["ELF x86"] + archive
    root = opened.find(np.frombuffer(data, np.uint8))
    assert root and outline.counts(root) == {
        "zip member": 7,
        **{f"{name} program": 1 for name in IMAGES},
    }
    assert trees.closed(root, len(data)) == data


def test_a_stream_in_a_program_is_opened_and_regions_move():
    text = wrapped.gzip_file(inputs.words(3_000))
    data = programs.elf(constants=text)
    root = opened.find(np.frombuffer(data, np.uint8))
    assert root and len(root.children) == 1
    (child,) = root.children
    assert [inner.kind for inner in child.node.children] == [2]
    assert all(0 <= start <= end <= child.node.own.size for start, end, _ in child.node.regions)
    assert trees.closed(root, len(data)) == data


def test_an_outline_names_the_sections():
    root = trees.parsed(IMAGES["ELF x86-64"])
    names = [segment.name for segment in outline.in_place(root)]
    assert "program 1: ELF x86-64, 11 sections > .text" in names
    assert "program 1: ELF x86-64, 11 sections > .rela.dyn" in names
    assert outline.in_words(outline.counts(root)) == "1 ELF x86-64 program"


def test_numbers_that_look_like_headers_are_not_programs():
    for start in (b"\x7fELF\2\1\1", b"MZ" + bytes(58) + b"\x80\0\0\0" + bytes(64) + b"PE\0\0", b"\xcf\xfa\xed\xfe"):
        assert Program().open(start + inputs.random_bytes(3_000), 0, Room(SIZE)) is None
        assert Program().open(start, 0, Room(SIZE)) is None
