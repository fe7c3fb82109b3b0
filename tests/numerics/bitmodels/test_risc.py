"""Instructions of machines other than x86: where they end, and which opcode and register they have."""

import numpy as np
import pytest

from squeeze.numerics.bitmodels import risc
from squeeze.numerics.jit import kernel


@kernel
def _follow(code, machine, ended):
    present = np.int64(0)
    for i in range(code.size):
        present, ended[i] = risc.follow(present, machine, np.int64(code[i]))
    return present


def followed(machine: int, code: str) -> tuple[list[int], list[int], int]:
    """Return opcodes and registers of the instructions of code in hexadecimal, and the present one after it."""
    data = np.frombuffer(bytes.fromhex(code), np.uint8)
    ended = np.zeros(data.size, np.int64)
    present = _follow(data, machine, ended)
    found = ended[ended >= 0]
    return (found & 1023).tolist(), (found >> 10).tolist(), int(present)


@pytest.mark.parametrize(
    ("machine", "code", "opcodes", "registers"),
    [
        (risc.SPARC, "9de3bfa0 40000003 82102001", [2 << 7 | 0x3C << 1 | 1, 1, 2 << 7 | 2 << 1 | 1], [14, 0, 1]),
        (risc.POWERPC, "7c0802a6 9421ffe0 48000001", [0x200 | 0x153, 37 << 1, 18 << 1 | 1], [0, 1, 0]),
        (risc.MIPS, "27bdffe0 00851021 0c000000", [9, 0x221, 3], [29, 2, 0]),
        (risc.ARM, "e92d4010 e1a00001", [0x92 | 1 << 9, 0x1A], [0x14, 0]),
        (risc.AARCH64, "d65f03c0 aa0103e0", [0x359, 0x2A8], [0, 0]),
        (risc.RISCV, "8280 b3055500", [0x202 | 4 << 2, 0x33], [1, 11]),
        (
            risc.SYSTEM_Z,
            "07fe a7490001 e3f0ffd80071 c0e500000000",
            [7, 0x387, 0x200 | 0xE3 ^ 0x11 << 5, 0x260],
            [15, 4, 15, 14],
        ),
    ],
    ids=["SPARC", "PowerPC", "MIPS", "ARM", "AArch64", "RISC-V", "z/Architecture"],
)
def test_instructions_leave_opcode_and_register(machine, code, opcodes, registers):
    found = followed(machine, code)
    assert found[0] == [opcode & 1023 for opcode in opcodes] and found[1] == registers and found[2] == 0


@pytest.mark.parametrize("machine", range(risc.SPARC, risc.SYSTEM_Z + 1))
def test_an_instruction_that_has_begun_has_its_bytes(machine):
    *_, present = followed(machine, "f3 12 34")
    assert present & 7 == 3 and present >> 3 & 7 == (6 if machine == risc.SYSTEM_Z else 4)
    assert present >> 20 == 0xF31234
