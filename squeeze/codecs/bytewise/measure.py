"""What levels 1 to 3 tell a meter (bitmodels/meter.py) of every byte and bit."""

from squeeze.codecs import presets
from squeeze.codecs.presets import Preset
from squeeze.numerics.bitmodels import meter as meters
from squeeze.numerics.jit import inline


def input_names(preset: Preset, width: int) -> list[str]:
    """What each of `width` inputs belongs to."""
    contexts = [presets.name_of(context) for context in preset.contexts]
    matches = [f"match of {least} bytes or more" for least in preset.matches for _ in range(2)]
    return (contexts + matches + ["bias"] * width)[:width]


@inline
def begin_byte(meter, m, unit):
    """A byte begins, which is a unit of its own."""
    meters.begin(meter)
    best = meters.longest(m.matches)
    if best >= 0:
        meters.follow(meter, unit, m.matches[best].pointer, m.matches[best].length)


@inline
def note_bit(meter, m, bit, probability):
    """A bit of a byte was coded, and nothing has learned from it yet."""
    meters.decide(meter, bit, probability, m.state.shift)
    meter.terms[:] = 0.0
    final = m.final_weights[m.state.partial]
    for k in range(m.rows.size):
        weights, scale = m.weights[m.rows[k]], final[k] * 2.0**-44
        for i in range(m.inputs.size):
            meter.terms[i] += scale * weights[i] * m.inputs[i]
    meters.share(meter, 0, bit, probability, m.state.mixed)
