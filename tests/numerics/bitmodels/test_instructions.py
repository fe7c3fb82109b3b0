"""The parser of instructions follows code byte by byte as the specification does, and never loses its place."""

import numpy as np
import pytest

from squeeze.numerics.bitmodels.instructions import ENDED, follow, selectors, summary
from squeeze.numerics.jit import kernel
from tests.makers import inputs, programs
from tests.references import naive_program


@kernel
def _followed(code, found):
    """Note the present instruction after each byte, and what is kept of those that end."""
    present, parser = np.int64(0), np.int64(0)
    for at in range(code.size):
        present, parser = follow(present, parser, np.int64(code[at]))
        found[at, 0], found[at, 1] = present, -1
        if present >= ENDED:
            found[at, 0], found[at, 1] = 0, summary(present)
            present, parser = np.int64(0), np.int64(0)


@kernel
def _selected(present, before, found):
    found[0], found[1], found[2] = selectors(present, before)


def followed(code: bytes) -> np.ndarray:
    found = np.zeros((len(code), 2), np.int64)
    _followed(np.frombuffer(code, np.uint8), found)
    return found


@pytest.mark.parametrize(
    "code", [programs.x86_code(3_000, 0), inputs.random_bytes(5_000, seed=9)], ids=["code", "noise"]
)
def test_fields_are_those_of_the_specification(code):
    begin = 0
    for at, (present, ended) in enumerate(followed(code).tolist()):
        fields = naive_program.partly(code[begin : at + 1])
        assert (ended >= 0) == (fields["phase"] is None), at
        if ended >= 0:
            assert (ended & 255, ended >> 8 & 3) == (fields["opcode"], fields["map"])
            assert (ended >> 10 & 3, ended >> 12 & 7) == (fields["modrm"] >> 6, fields["modrm"] >> 3 & 7)
            assert ended >> 15 == (fields["prefix"] > 0)
            begin = at + 1
            continue
        names = (("phase", 0), ("displacement", 3), ("immediate", 6), ("opcode", 10), ("map", 18), ("modrm", 20))
        assert present == sum(fields[name] << shift for name, shift in (*names, ("sib", 28), ("prefix", 36))), at


def test_instructions_end_where_their_lengths_say():
    code = programs.x86_code(3_000, 0)
    ends = np.flatnonzero(followed(code)[:, 1] >= 0) + 1
    at, expected = 0, []
    while at < len(code) - 24:
        at += naive_program.instruction(code, at, 64)[0]
        expected.append(at)
    assert ends[: len(expected)].tolist() == expected


def test_numbers_that_choose_weights_are_below_256():
    found = np.zeros(3, np.int64)
    for present, ended in followed(inputs.random_bytes(3_000, seed=2)).tolist():
        _selected(present, max(ended, 0), found)
        assert found.min() >= 0 and found.max() < 256
