"""The units of a file, bytes or tokens, with what was measured of each, over all blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from squeeze.codecs.stream.measuring import MeasuredBlock
from squeeze.numerics.bitmodels.meter import PARTS, TOP, Meter

NOWHERE, DICTIONARY = -1, -2  # sources that are no place in the file
NO_SHIFT = 255
_STORED = "stored as it is"
_SHARES, _CHANCES = 512, 65535
_TOKEN = 256  # the symbol of the vocabulary's first token; those below are bytes


@dataclass(frozen=True)
class Units:
    """Arrays of n units in the order of the file: bytes, or tokens where a language model read a text."""

    starts: np.ndarray  # int64 [n]: the byte that each begins at
    ends: np.ndarray  # int64 [n]
    bits: np.ndarray  # float32 [n]: what it cost
    model_bits: np.ndarray  # float32 [n]: what it would cost by the network or language model alone; NaN without one
    rivals: np.ndarray  # float32 [n]: probability of the likeliest branch that was not taken
    rival_shifts: np.ndarray  # uint8 [n]: the bit of the byte where that branch begins; NO_SHIFT of a token
    sources: np.ndarray  # int64 [n]: the byte that the longest match points to, NOWHERE or DICTIONARY
    lengths: np.ndarray  # int64 [n]: bytes or tokens that agreed before it
    parts: np.ndarray  # uint8 [n, PARTS]: the parts of the model that saved, or wasted, most bits
    shares: np.ndarray  # float32 [n, PARTS]: those bits
    symbols: np.ndarray  # int32 [n, TOP]: what the network or language model expected; -1 where nothing
    chances: np.ndarray  # float32 [n, TOP]: with which probability

    def __len__(self) -> int:
        return int(self.starts.size)

    def within(self, begin: int, end: int) -> "Units":
        """Return the units that begin from byte `begin` to before `end`."""
        first, last = np.searchsorted(self.starts, (begin, end))
        return replace(self, **{field.name: getattr(self, field.name)[first:last] for field in fields(self)})

    def bits_of_bytes(self) -> np.ndarray:
        """Return the bits of each byte, float64; the bytes of a token share its bits evenly."""
        sizes = self.ends - self.starts
        return np.repeat(self.bits.astype(np.float64) / np.maximum(sizes, 1), sizes)


@dataclass(frozen=True)
class Names:
    """The names that numbers in units refer to."""

    parts: tuple[str, ...]
    symbols: tuple[bytes, ...]


def gather(blocks: Sequence[MeasuredBlock]) -> tuple[Units, Names]:
    """Collect the units of all blocks."""
    parts = tuple(dict.fromkeys((_STORED, *(name for block in blocks for name in block.recorder.parts))))
    leaves = sorted({leaf for block in blocks for leaf in _leaves(block)})
    symbols = tuple(bytes([byte]) for byte in range(_TOKEN)) + tuple(
        next(block.recorder.spell(leaf) for block in blocks if block.recorder.spell) for leaf in leaves
    )
    known = np.array(leaves, np.int64)
    pieces = [_units(block, {name: i for i, name in enumerate(parts)}, known) for block in blocks]
    pieces = pieces or [_stored(np.empty(0, np.int64))]
    joined = {field.name: np.concatenate([getattr(piece, field.name) for piece in pieces]) for field in fields(Units)}
    order = np.argsort(joined["starts"], kind="stable")  # the parts of a block take turns
    joined = {name: values[order] for name, values in joined.items()}
    joined["ends"] = np.append(joined["starts"][1:], joined["ends"].max(initial=0))[: order.size]
    return Units(**joined), Names(parts, symbols)


def _leaves(block: MeasuredBlock) -> set[int]:
    meter = block.recorder.meter
    if meter is None or block.recorder.spell is None:
        return set()
    return set(np.unique(meter.symbols[meter.symbols >= 0]).tolist())


def _units(block: MeasuredBlock, parts: dict[str, int], leaves: np.ndarray) -> Units:
    recorder, places = block.recorder, block.places
    meter: Meter | None = recorder.meter
    if meter is None:
        return _stored(places)
    symbols, shifts, starts = meter.symbols.astype(np.int32), meter.rival_shifts, np.arange(places.size)
    if recorder.spell:
        symbols = np.where(symbols < 0, -1, _TOKEN + np.searchsorted(leaves, symbols)).astype(np.int32)
        shifts, starts = np.full(shifts.size, NO_SHIFT, np.uint8), meter.starts
    units, shares, starts = _apart(starts, places)
    sources = np.where(meter.sources >= 0, places[np.maximum(meter.sources, 0)], DICTIONARY)
    return Units(
        starts=places[starts],
        ends=places[np.append(starts[1:], places.size) - 1] + 1,
        bits=meter.bits[units] * shares,
        model_bits=meter.model_bits[units] * shares,
        rivals=meter.rivals[units],
        rival_shifts=shifts[units],
        sources=np.where(meter.lengths == 0, NOWHERE, sources)[units],
        lengths=meter.lengths.astype(np.int64)[units],
        parts=np.array([parts[name] for name in recorder.parts], np.uint8)[meter.parts][units],
        shares=meter.shares[units].astype(np.float32) / _SHARES * shares[:, None],
        symbols=symbols[units],
        chances=meter.chances[units].astype(np.float32) / _CHANCES,
    )


def _apart(starts: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide tokens whose bytes are shown apart, since a text may continue in another wrapper.

    Args:
        starts: int64 [n], the first byte of each unit.
        places: int64 [bytes], where each byte is shown.

    Returns:
        the unit that each new one is of, its share of that unit's bytes, float32, and its first byte.
    """
    jumps = np.flatnonzero(np.diff(places) != 1) + 1
    found = np.union1d(starts, jumps).astype(np.int64)
    units = np.searchsorted(starts, found, "right") - 1
    sizes = np.diff(np.append(found, places.size))
    return units, (sizes / np.bincount(units, sizes, starts.size)[units]).astype(np.float32), found


class Piece(NamedTuple):
    """Bytes in a row of one block or part of a block."""

    start: int
    end: int
    block: int  # its number


def pieces_of(blocks: Sequence[MeasuredBlock], cuts: Sequence[int] = ()) -> tuple[Piece, ...]:
    """Return the pieces of all blocks in order; they are also divided at `cuts`, places of bytes."""
    found = list[Piece]()
    apart = np.unique(np.array(cuts, np.int64))
    for number, block in enumerate(blocks):
        if block.places.size:
            inner = block.places[1:]
            jumps = np.flatnonzero((np.diff(block.places) != 1) | np.isin(inner, apart)) + 1
            bounds = np.concatenate([[0], jumps, [block.places.size]]).tolist()
            starts, ends = block.places[bounds[:-1]], block.places[np.array(bounds[1:]) - 1] + 1
            found += (Piece(start, end, number) for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
    return tuple(sorted(found))


def _stored(places: np.ndarray) -> Units:
    """Return units of stored bytes, of eight bits each."""
    size = places.size
    return Units(
        starts=places,
        ends=places + 1,
        bits=np.full(size, 8, np.float32),
        model_bits=np.full(size, np.nan, np.float32),
        rivals=np.zeros(size, np.float32),
        rival_shifts=np.full(size, NO_SHIFT, np.uint8),
        sources=np.full(size, NOWHERE, np.int64),
        lengths=np.zeros(size, np.int64),
        parts=np.zeros((size, PARTS), np.uint8),
        shares=np.zeros((size, PARTS), np.float32),
        symbols=np.full((size, TOP), -1, np.int32),
        chances=np.zeros((size, TOP), np.float32),
    )
