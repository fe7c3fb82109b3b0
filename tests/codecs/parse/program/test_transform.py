"""Each part of a program comes back alone, bytes outside of parts stay, and impossible derived parts are refused."""

from dataclasses import replace

import numpy as np
import pytest

from squeeze.codecs.parse.program import transform
from squeeze.codecs.parse.program.plan import FRAME_INDEX, HASH, ROWS, Part, Plan, Segment
from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from tests.makers import programs

IMAGES = programs.images()


def plan_of(data: bytes) -> Plan:
    found = Program().open(data, 0, Room(1 << 20))
    assert found
    return Plan.read(found.extra, found.content.size)


@pytest.mark.parametrize("name", ["ELF x86-64", "PE x86-64", "Mach-O AArch64"])
def test_each_part_alone_comes_back(name):
    image, plan = np.frombuffer(IMAGES[name], np.uint8), plan_of(IMAGES[name])
    for part in plan.parts:
        alone = replace(plan, parts=(part,))
        content = transform.hide(image, alone)
        assert content.size == image.size - part.removed
        assert np.array_equal(content[: part.start], image[: part.start])
        assert np.array_equal(transform.show(content, alone), image)


def test_rows_are_transformed_in_place_and_nothing_else():
    image = np.arange(200, dtype=np.uint8)
    plan = Plan(0, 2, 1, (Segment(4096, 0, 200),), (Part(ROWS, 40, 80, (8,)),))
    content = transform.hide(image, plan)
    changed = np.flatnonzero(content != image)
    assert changed.size and changed.min() >= 40 and changed.max() < 120
    assert np.array_equal(transform.show(content, plan), image)


def test_derived_bytes_follow_from_the_others():
    image, plan = np.frombuffer(IMAGES["ELF x86-64"], np.uint8), plan_of(IMAGES["ELF x86-64"])
    parts = [part for part in plan.parts if part.kind in (FRAME_INDEX, HASH)]
    assert len(parts) == 2
    for part in parts:
        rest = transform.derived(image, part, plan)
        assert rest is not None and np.array_equal(rest, image[part.end - part.removed : part.end])


def test_a_derived_part_of_another_size_is_refused():
    plan = Plan(0, 2, 1, (), (Part(FRAME_INDEX, 0, 50, (60, 40)),))
    with pytest.raises(DamagedError):
        transform.show(np.zeros(100, np.uint8), plan)
