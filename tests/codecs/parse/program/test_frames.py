"""Call frame information has differences that are small, comes back from them, and tells its own index."""

from functools import cache

import numpy as np
import pytest

from squeeze.codecs.parse.program import frames, plan as plans
from squeeze.codecs.parse.program.plan import Part, Plan
from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.room import Room
from tests.makers import programs

NAME = "ELF x86-64"
IMAGE = np.frombuffer(programs.images()[NAME], np.uint8)


@cache
def plan() -> Plan:
    """Return the plan of the image; not made at import, since that compiles."""
    found = Program().open(IMAGE.tobytes(), 0, Room(1 << 20))
    assert found
    return Plan.read(found.extra, found.content.size)


def part_of(kind: int) -> Part:
    return next(part for part in plan().parts if part.kind == kind)


def piece() -> tuple[np.ndarray, int]:
    """Return the frames of the image and their address."""
    part = part_of(plans.FRAMES)
    return IMAGE[part.start : part.end].copy(), plan().address(part.start)


def test_a_frame_has_the_distance_from_the_end_of_the_one_before():
    hidden, address = piece()
    frames.hide(hidden, address)
    at, begins = 0, []
    while size := int.from_bytes(hidden[at : at + 4].tobytes(), "little"):
        begins.append(int.from_bytes(hidden[at + 8 : at + 12].tobytes(), "little"))
        at += 4 + size
    assert len(begins) > 100 and set(begins[2:]) == {3}


@pytest.mark.parametrize("cut", [0, 1, 7, 30, 1001])
def test_frames_come_back_even_if_cut_off(cut):
    whole, address = piece()
    whole = whole[: whole.size - cut]
    changed = whole.copy()
    frames.hide(changed, address)
    assert not np.array_equal(changed, whole)
    frames.show(changed, address)
    assert np.array_equal(changed, whole)


def test_the_index_follows_from_the_frames():
    whole, address = piece()
    part = part_of(plans.FRAME_INDEX)
    header = IMAGE[part.start : part.end].tobytes()
    assert frames.HEADER + frames.index(whole, address, plan().address(part.start)) == header


def test_bytes_that_are_no_frames_stay():
    for data in (np.zeros(100, np.uint8), np.full(100, 255, np.uint8), np.zeros(0, np.uint8)):
        changed = data.copy()
        frames.hide(changed, 4096)
        assert np.array_equal(changed, data)
