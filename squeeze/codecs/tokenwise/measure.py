"""The costs of levels 7 to 9 for `explain`: what the meter (bitmodels/meter.py) notes of every token and decision."""

import numpy as np

from squeeze.codecs.bytewise import presets as bytewise
from squeeze.codecs.bytewise.presets import TokenPreset
from squeeze.codecs.tokenwise.arrays import STOP_ORDERS, WIDTHS
from squeeze.numerics import frequencies
from squeeze.numerics.bitmodels import meter as meters
from squeeze.numerics.jit import inline

_BYTES, _STOPS = 0, 1  # kinds of decisions
_STOP_CONTEXTS = (
    *("one token before", "two tokens before", "three tokens before"),
    *("order 4", "word", "token so far"),
)
_EXTRA = {
    "model": "language model",
    "token_match": "match of tokens",
    "bytewise": "contexts of bytes together",
    "refined": "language model",
}


def input_names(preset: TokenPreset, width: int, first: int) -> list[list[str]]:
    """Name what each mixer input belongs to, for bits of bytes and for stops.

    Args:
        preset: contexts and match models.
        width: inputs of the mixer.
        first: first input that only levels 7 to 9 have.
    """
    extra = [_EXTRA[name] for name, count in WIDTHS._asdict().items() for _ in range(count)]
    of_bytes = bytewise.input_names(preset.bytewise, first)
    of_stops = [*_STOP_CONTEXTS, *["bias"] * (first - STOP_ORDERS)]
    return [[*names, *extra, *["bias"] * (width - first - len(extra))] for names in (of_bytes, of_stops)]


@inline
def begin_entry(meter, m, x, lane, cdf, row):
    """Start a unit for an entry, a token or escaped byte: note the match and the language model's candidates."""
    unit = x.token_places[lane]
    meters.begin(meter)
    meter.starts[unit] = x.places[lane]
    if x.state.expected >= 0:
        meters.follow(meter, unit, meter.starts[x.token_matches[lane].pointer], x.state.match_length)
    else:
        best = meters.longest(m.matches)
        if best >= 0:
            meters.follow(meter, unit, m.matches[best].pointer, m.matches[best].length)
    filled, least, total = 0, np.uint64(0), np.float64(frequencies.total(cdf, row))
    for leaf in range(cdf.parts.shape[1]):
        frequency = frequencies.frequency(cdf, row, leaf)
        if frequency > least:
            filled = meters.candidate(meter, unit, leaf, np.float64(frequency) / total, filled)
            if filled == meters.TOP:
                least = np.uint64(np.float64(meter.chances[unit, filled - 1]) / 65535.0 * total)


@inline
def end_entry(meter, x, lane, entry, cdf, row):
    """Note the bits that the language model alone would have needed; an entry is a leaf, or -1 - byte."""
    unit = x.token_places[lane]
    if entry >= 0:
        share = np.float64(frequencies.total(cdf, row)) / np.float64(frequencies.frequency(cdf, row, entry))
        meter.model_bits[unit] = np.float32(np.log2(share))
    meters.finish(meter, unit)


@inline
def note_escape(meter, escaped, probability):
    """Note the cost of the escape flag, to which no input contributes."""
    meters.decide(meter, escaped, probability, 0)


@inline
def note_decision(meter, m, x, bit, probability, stop):
    """Note a decision's probability and each input's contribution, before anything is trained on it."""
    meters.decide(meter, bit, probability, 0)
    meter.terms[:] = 0.0
    final = x.final_weights[x.state.final_row]
    for k in x.sets:
        weights, scale = x.weights[x.rows[k]], final[k] * 2.0**-52
        for i in range(m.inputs.size):
            meter.terms[i] += scale * weights[i] * m.inputs[i]
    meters.share(meter, _STOPS if stop else _BYTES, bit, probability, x.state.mixed)
