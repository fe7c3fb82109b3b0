"""Lengths of x86 instructions, compared with a disassembler's and with the specification."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from squeeze.codecs.parse.program.lengths import LONGEST, instruction
from squeeze.numerics.bitmodels.opcodes import OPCODES
from squeeze.numerics.jit import kernel
from tests.makers import inputs, programs
from tests.references import naive_program

# Instructions, and the place of an operand that is relative to the instruction pointer.
LONG_MODE = (
    "90 55 4889e5 4883ec20 4881ec00100000 488b4508 488b442408 488b8424a8000000 e8+00000000 e9+11223344 0f84+00000000",
    "eb10 7405 488b05+00000000 488d3d+11223344 c705+0000000001000000 66c705+000000000100 803d+0000000007 f6d8 f7d8",
    "f605+0000000001 f705+0000000000000000 48b80807060504030201 b801000000 66b80100 c20800 c8100001 cd80 0fb6c0",
    "0f1f4000 660f1f840000000000 f30f6f07 f30f6f05+00000000 660f3a0fc108 660f3800c1 0fbae003 0fa4c203 c5f877 9b",
    "c5fd6f06 c5fd6f05+00000000 c4e27d18c1 c4e3fd00c04e 62f17c4810c1 62f17c481005+00000000 62f3fd4843c14e d9c0",
    "a10807060504030201 488b0c2500000000 8b04cd00000000 f2ff25+00000000 ff25+00000000 6a01 6801000000 66680100 a801",
    "69c000010000 6bc003 dd4508 0f05 0fa2 0f0b f0480fb111 64488b042528000000 410fc8 0fc7f0 0f01d0 e310 66a90100",
)
SHORT_MODE = ("40 8b0500000000 e8+00000000 66e80000 9a000000000000 a100000000 0f85+00000000 c7042401000000",)


def cases(lines: tuple[str, ...]) -> list[tuple[bytes, int]]:
    """Return the bytes of instructions, and the place of their relative operand, or 0."""
    items = " ".join(lines).split()
    return [(bytes.fromhex(item.replace("+", "")), (item.find("+") + 1) // 2) for item in items]


def name_of(case: bytes | int) -> str:
    return case.hex() if isinstance(case, bytes) else str(case)


@kernel
def _length(code, at, opcodes, long_mode, found):
    found[0], found[1] = instruction(code, at, opcodes, long_mode)


def length(code: bytes, at: int, long_mode: int) -> tuple[int, int]:
    found = np.zeros(2, np.int64)
    _length(np.frombuffer(code, np.uint8), at, OPCODES, long_mode, found)
    return int(found[0]), int(found[1])


@pytest.mark.parametrize(("code", "place"), cases(LONG_MODE), ids=name_of)
def test_64_bit_instructions_have_their_length_and_operand(code, place):
    assert length(code + bytes(LONGEST), 0, 1) == (len(code), place)


@pytest.mark.parametrize(("code", "place"), cases(SHORT_MODE), ids=name_of)
def test_32_bit_instructions_have_their_length_and_operand(code, place):
    assert length(code + bytes(LONGEST), 0, 0) == (len(code), place)


@pytest.mark.parametrize("long_mode", [0, 1])
def test_lengths_of_any_bytes_are_those_of_the_specification(long_mode):
    code = inputs.random_bytes(4_000, seed=5) + programs.x86_code(2_000, 0)
    code += bytes(byte for op in range(256) for byte in (0x0F, op, 0x05, 0xC4, op, 0x15, 0x66, 0x48, op, 0x04, 0x25))
    for at in range(len(code) - LONGEST):
        size, place = naive_program.instruction(code, at, 64 if long_mode else 32)
        assert length(code, at, long_mode) == (size, place), code[at : at + LONGEST].hex()
        assert 0 < size <= LONGEST and place + 4 * bool(place) <= at + size


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
def test_a_walk_over_code_meets_the_instructions_of_a_disassembler(tmp_path):
    code = programs.x86_code(6_000, 0)
    path = tmp_path / "code"
    path.write_bytes(code)
    command = ["objdump", "-D", "-b", "binary", "-m", "i386:x86-64", str(path)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    starts = [int(match[1], 16) for match in re.finditer(r"^ +([0-9a-f]+):\t.*\t", listed, re.MULTILINE)]
    met, at = [], 0
    while at < len(code):
        met.append(at)
        at += length(code + bytes(LONGEST), at, 1)[0]
    assert met == starts
