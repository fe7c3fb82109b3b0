"""Payloads of tensors that share bytes with others: tables are read as they were written, and damage is named."""

import numpy as np
import pytest

from squeeze.errors import DamagedError
from squeeze.packing.shared import LITERAL, PIECE, Joined, Run, Table, literals_of, merged, read
from squeeze.packing.tensors.content import InMemory, whole

SIZE = 3 * PIECE + 100
TABLE = Table(
    (("", "a"), ("b.safetensors", "ö")), (Run(0, PIECE, PIECE), Run(LITERAL, 0, PIECE), Run(1, 0, PIECE + 100))
)


def payload_of(table, rest=b""):
    return InMemory(np.frombuffer(table.to_bytes() + rest, np.uint8))


def test_a_table_is_read_as_it_was_written():
    table, rest = read(payload_of(TABLE, b"rest"), SIZE)
    assert table == TABLE
    assert whole(rest).tobytes() == b"rest"
    assert (table.literals, table.is_whole) == (PIECE, False)
    assert len(TABLE.to_bytes()) % 8 == 0


def test_a_tensor_is_its_runs_in_order():
    data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    rest = literals_of(InMemory(data), TABLE)
    assert np.array_equal(whole(rest), data[PIECE : 2 * PIECE])
    shared = np.concatenate([data[:PIECE], data[2 * PIECE :]])
    assert np.array_equal(whole(merged(TABLE, InMemory(shared), rest)), data)
    with pytest.raises(DamagedError):
        merged(TABLE, InMemory(shared[:-1]), rest)


def test_joined_contents_are_read_from_any_place():
    data = np.arange(40, dtype=np.uint8)
    joined = Joined([InMemory(data[:10]), InMemory(data[:0]), InMemory(data[10:11]), InMemory(data[11:])])
    for begin, end in ((0, 40), (9, 12), (10, 11), (39, 40), (0, 0)):
        out = np.empty(end - begin, np.uint8)
        joined.fill(begin, out)
        assert np.array_equal(out, data[begin:end])


@pytest.mark.parametrize(
    "runs",
    [
        (Run(2, 0, SIZE),),
        (Run(0, -1, SIZE), Run(1, 0, SIZE)),
        (Run(0, 0, PIECE - 1), Run(1, 0, SIZE - PIECE + 1)),
        (Run(0, 0, PIECE), Run(1, 0, SIZE)),
        (Run(0, 0, 2 * PIECE), Run(1, 0, 0), Run(0, 0, SIZE - 2 * PIECE)),
        (Run(0, 0, SIZE),),
        (Run(-2, 0, PIECE), Run(0, 0, PIECE), Run(1, 0, SIZE - 2 * PIECE)),
    ],
    ids=["unknown", "negative", "uneven", "longer", "empty", "unused", "below"],
)
def test_refuses_runs_that_are_not_the_tensor(runs):
    with pytest.raises(DamagedError, match="the table of bytes that it shares with other tensors is damaged"):
        read(payload_of(Table(TABLE.sources, runs)), SIZE)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"from":[["a"]],"runs":[]}', b'{"from":[],"runs":[[1]]}', b'{"from":[],"runs":[[true,0,1]]}']
)
def test_refuses_another_text(text):
    with pytest.raises(DamagedError):
        read(InMemory(np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)), SIZE)
    with pytest.raises(DamagedError):
        read(InMemory(np.frombuffer(text, np.uint8)), SIZE)
