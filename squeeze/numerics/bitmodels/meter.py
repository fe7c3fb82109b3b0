"""A meter that coders update: what every decision costs, and which inputs saved how much.

A coder gets a `Meter`, or None; then its steps are compiled without it. The unit that is measured is a byte or a token.
A decision without a model costs one bit. What the mixed logit saves is shared among the inputs in proportion to their
terms, as integrated gradients attribute a sum (Sundararajan, Taly and Yan 2017, arXiv:1703.01365). What adaptive
probability maps change after that is theirs.

No coded bit depends on anything here, so logarithms may be the library's.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from squeeze.numerics.bitmodels import layout
from squeeze.numerics.jit import inline

TOP, PARTS = 5, 3  # candidates of the network, and parts that count most: so many are kept of a unit
REFINEMENT = 0  # the part of adaptive probability maps
REFINEMENTS = "adaptive probability maps"
_ONE = 1 << 32
_NEAR, _FLAT = 0.001, 0.5 / np.log(2)  # a logit near 0, and bits that are saved there for each unit of it

_STATE = np.dtype([(name, np.float64) for name in ("cost", "reached", "rival")] + [("rival_shift", np.int64)])


class Meter(NamedTuple):
    """The measurements of n units, and the state of the current one."""

    state: Any  # a record of _STATE: bits so far; probability of what is decided so far; the likeliest other branch
    part_of: np.ndarray  # int64 [kinds of decisions, runs]: the part of each run of inputs
    ends: np.ndarray  # int64 [kinds of decisions, runs]: where each run ends
    pending: np.ndarray  # float64 [parts]: bits saved in the present unit
    weights: np.ndarray  # float32 [inputs]: what each input counts for in the present decision
    known: np.ndarray  # float32 [inputs]: 1 where the input says something, where a coder asks
    terms: np.ndarray  # float64 [inputs]: what each adds to the natural logit
    saved: np.ndarray  # float64 [parts]: bits saved in all units
    bits: np.ndarray  # float32 [n]
    model_bits: np.ndarray  # float32 [n]: what it would cost by the network alone; NaN where there is none
    rivals: np.ndarray  # float32 [n]: probability of the likeliest branch that was not taken
    rival_shifts: np.ndarray  # uint8 [n]: the place of the bit where that branch begins
    starts: np.ndarray  # int64 [n]: of tokens, the byte that each begins at; else empty
    sources: np.ndarray  # int32 [n]: the byte that the longest match points to; -1 where there is none
    lengths: np.ndarray  # uint16 [n]: bytes or tokens that agreed before it
    parts: np.ndarray  # uint8 [n, PARTS]: those that saved, or wasted, most bits
    shares: np.ndarray  # int16 [n, PARTS]: those bits, in 512ths
    symbols: np.ndarray  # int32 or int16 [n, TOP]: the network's likeliest bytes or leaves; -1 where there are none
    chances: np.ndarray  # uint16 [n, TOP]: their probabilities, in 65,535ths


def build(units: int, names: Sequence[Sequence[str]], tokens: bool = False) -> tuple[Meter, tuple[str, ...]]:
    """Return a meter and the names of its parts.

    Args:
        units: The number of units.
        names: For each kind of decision, the part of each input.
        tokens: Whether units are tokens.
    """
    parts = tuple(dict.fromkeys((REFINEMENTS, *(name for kind in names for name in kind))))
    width, runs = len(names[0]), [[(name, len(list(same))) for name, same in groupby(kind)] for kind in names]
    most = max(map(len, runs))
    part_of, ends = np.zeros((2, len(runs), most), np.int64)
    for kind, run in enumerate(runs):
        part_of[kind, : len(run)] = [parts.index(name) for name, _ in run]
        ends[kind] = np.cumsum([*(count for _, count in run), *[0] * (most - len(run))])
    meter = Meter(
        state=layout.record(_STATE),
        part_of=part_of,
        ends=ends,
        pending=np.zeros(len(parts)),
        weights=np.zeros(width, np.float32),
        known=np.zeros(width, np.float32),
        terms=np.zeros(width),
        saved=np.zeros(len(parts)),
        bits=np.zeros(units, np.float32),
        model_bits=np.full(units, np.nan, np.float32),
        rivals=np.zeros(units, np.float32),
        rival_shifts=np.zeros(units, np.uint8),
        starts=np.zeros(units if tokens else 0, np.int64),
        sources=np.full(units, -1, np.int32),
        lengths=np.zeros(units, np.uint16),
        parts=np.zeros((units, PARTS), np.uint8),
        shares=np.zeros((units, PARTS), np.int16),
        symbols=np.full((units, TOP), -1, np.int32 if tokens else np.int16),
        chances=np.zeros((units, TOP), np.uint16),
    )
    return meter, parts


Spell = Callable[[int], bytes]  # the bytes of a leaf


class Recorder:
    """A holder that creates the meter of a block when its coder asks for one."""

    meter: Meter | None = None
    parts: tuple[str, ...] = ()  # their names
    spell: Spell | None = None  # where units are tokens

    def start(self, units: int, names: Sequence[Sequence[str]], spell: Spell | None = None) -> Meter:
        """Create a meter as `build` does. Its symbols are leaves if `spell` is given, and bytes otherwise."""
        self.meter, self.parts = build(units, names, spell is not None)
        self.spell = spell
        return self.meter


@inline
def begin(meter):
    """Start a unit."""
    meter.state.cost, meter.state.reached = 0.0, 1.0
    meter.state.rival, meter.state.rival_shift = 0.0, 0
    for i in range(meter.pending.size):
        meter.pending[i] = 0.0


@inline
def cost_of(bit, probability):
    """Return the bits that a decision costs, given the 32-bit probability of a one."""
    return 32.0 - np.log2(np.float64(probability if bit else _ONE - probability))


@inline
def decide(meter, bit, probability, shift):
    """Count a decision between branches that differ at bit `shift`."""
    one = np.float64(probability) * 2.0**-32
    taken = one if bit else 1.0 - one
    rival = meter.state.reached * (1.0 - taken)
    if rival > meter.state.rival:
        meter.state.rival, meter.state.rival_shift = rival, shift
    meter.state.reached *= taken
    meter.state.cost += cost_of(bit, probability)


@inline
def share(meter, kind, bit, probability, mixed):
    """Share what a decision saved among the inputs whose `terms` made the logit.

    Args:
        meter: The meter.
        kind: The kind of decision.
        bit: The decision.
        probability: The final 32-bit probability of a one.
        mixed: The 32-bit probability before refinement, which gets credit for the difference.
    """
    total = 0.0
    for i in range(meter.terms.size):
        total += meter.terms[i]
    cost = cost_of(bit, mixed)
    saved = (_FLAT if bit else -_FLAT) if abs(total) < _NEAR else (1.0 - cost) / total
    meter.pending[REFINEMENT] += cost - cost_of(bit, probability)
    begin = 0
    for run in range(meter.ends.shape[1]):
        end, term = meter.ends[kind, run], 0.0
        for i in range(begin, end):
            term += meter.terms[i]
        meter.pending[meter.part_of[kind, run]] += saved * term
        begin = end


@inline
def finish(meter, unit):
    """Store the measurements of a finished unit."""
    meter.bits[unit] = np.float32(meter.state.cost)
    meter.rivals[unit] = np.float32(meter.state.rival)
    meter.rival_shifts[unit] = np.uint8(meter.state.rival_shift)
    for i in range(meter.pending.size):
        meter.saved[i] += meter.pending[i]
    for k in range(PARTS):
        best = 0
        for i in range(1, meter.pending.size):
            if abs(meter.pending[i]) > abs(meter.pending[best]):
                best = i
        meter.parts[unit, k] = np.uint8(best)
        meter.shares[unit, k] = np.int16(round(min(max(meter.pending[best], -63.0), 63.0) * 512.0))
        meter.pending[best] = 0.0


@inline
def follow(meter, unit, source, length):
    """Record where the unit's match points. Lengths above 65,535 are stored as that."""
    if length > 0:
        meter.sources[unit] = np.int32(source)
        meter.lengths[unit] = np.uint16(min(length, 65535))


@inline
def longest(state):
    """Return the match (match.py) with the most matching bytes, or -1."""
    best, length = -1, 0
    for k in range(state.size):
        if state[k].pointer > 0 and state[k].length > length:
            best, length = k, state[k].length
    return best


@inline
def candidate(meter, unit, symbol, probability, filled):
    """Insert a symbol into a unit's most probable ones, in falling order.

    Args:
        meter: The meter.
        unit: The unit.
        symbol: The byte or leaf.
        probability: Its probability.
        filled: How many symbols the unit has.

    Returns:
        How many symbols the unit has now.
    """
    chance = np.uint16(probability * 65535.0 + 0.5)
    if filled == TOP and chance <= meter.chances[unit, TOP - 1]:
        return filled
    place = min(filled, TOP - 1)
    while place > 0 and meter.chances[unit, place - 1] < chance:
        meter.chances[unit, place] = meter.chances[unit, place - 1]
        meter.symbols[unit, place] = meter.symbols[unit, place - 1]
        place -= 1
    meter.chances[unit, place] = chance
    meter.symbols[unit, place] = symbol
    return min(filled + 1, TOP)
