"""Operands of RISC-V code become absolute and come back; code that cannot come back stays as it is."""

import struct

import numpy as np
import pytest

from squeeze.codecs.parse.program import plan as plans
from squeeze.codecs.parse.program.plan import Plan
from squeeze.codecs.parse.program.riscv import riscv
from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.room import Room
from tests.makers import programs


def hidden(code: bytes, address: int) -> bytes:
    """Return transformed code, which comes back."""
    data = np.frombuffer(code, np.uint8).copy()
    riscv(data, address, True)
    done = data.tobytes()
    riscv(data, address, False)
    assert data.tobytes() == code
    return done


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def test_jumps_to_one_place_are_equal_bytes():
    code = words(0x0080016F, 0x0040016F, 0x0000016F, 0xFFDFF16F, 0)  # to 8 bytes after the first, from four places
    done = hidden(code, 0x10000)
    assert len({done[at : at + 4] for at in range(0, 16, 4)}) == 1
    assert done[:4] == bytes([0x6F, 0x01, 0x80, 0x04])  # half of 0x10008, the highest digit first


@pytest.mark.parametrize("second", [0x00013503, 0x00010513, 0x000100E7, 0x00A13023, 0x00A12027])
def test_pairs_with_one_target_are_equal_bytes(second):
    target, code = 0x54A98, b""
    for _ in range(3):
        away = (target - 0x10000 - len(code)) % 2**32
        low = away % 4096
        is_store = second & 0x7F in (0x23, 0x27)
        code += words(
            0x117 | (away - low + (4096 if low >= 2048 else 0)) % 2**32,
            second | ((low >> 5 << 25 | low % 32 << 7) if is_store else low << 20),
            0x00000013,
        )
    done = hidden(code, 0x10000)
    assert done[:8] == done[12:20] == done[24:32]
    assert done[4:8] == target.to_bytes(4, "big")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("address", [0, 0x1234, 0x7FFFFFF0])
def test_any_code_comes_back(seed, address):
    code = programs.riscv_code(4_000, address, seed)
    assert hidden(code + b"\x17", address)[-1] == 0x17
    assert hidden(b"\x01\0" + code[:-1], address) != b"\x01\0" + code[:-1]


def test_a_program_that_only_looks_transformed_stays_as_it_is():
    image = programs.elf(243)
    found = Program().open(image, 0, Room(1 << 20))
    assert found
    part = next(p for p in Plan.read(found.extra, found.content.size).parts if p.kind == plans.RISCV)
    fake = words(0x117 | 0x10513 << 12, 0x00000033)  # `auipc` alone, whose immediate looks like an instruction
    changed = image[: part.start] + fake + image[part.start + 8 :]
    found = Program().open(changed, 0, Room(1 << 20))
    assert found
    plan = Plan.read(found.extra, found.content.size)
    assert Program().close(found.content, found.content[:0], found.extra).tobytes() == changed
    assert plans.RISCV not in {p.kind for p in plan.parts}
