"""The sizes of the tokenwise mixing, and what can be left out of it."""

import numpy as np
import pytest

from squeeze.codecs.bytewise import state as bytewise
from squeeze.codecs.bytewise.presets import BYTEWISE
from squeeze.codecs.tokenwise.arrays import APM, EXTRA, FIRST_APM, FIRST_ROW, INPUT, PARTS, SET, TokenMix, build_mix
from squeeze.numerics import trie
from squeeze.numerics.bitmodels import mixer


def mix(without: frozenset[str] = frozenset()) -> TokenMix:
    model = bytewise.build_model(np.zeros(100, np.uint8), BYTEWISE, 0, EXTRA)
    return build_mix(model, trie.build([b"a", b"ab", b"b"]), np.array([5, 4]), without)


def test_rows_and_inputs_follow_each_other():
    assert FIRST_ROW == (0, 32, 544, 640, 2688, 2944, 4992, 9088)
    assert tuple(k << 16 for k in range(5)) == FIRST_APM
    assert (INPUT, EXTRA) == ((0, 1, 3, 4), 5)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_can_be_left_out(part):
    whole, less = mix(), mix(frozenset({part}))
    kind, _, name = part.partition(" ")
    assert less.sets.tolist() == [k for k in range(len(SET)) if part != f"set {SET._fields[k]}"]
    assert less.refines.tolist() == [part != f"refinement {name}" for name in APM._fields]
    assert (less.final_weights == mixer.FINE_ONE // less.sets.size).all()
    flags = [field for field in whole.state.dtype.names if field.startswith("has_")]
    changed = [field for field in flags if whole.state[field] != less.state[field]]
    assert changed == {"input": [f"has_{name}"], "stops": ["has_stops"]}.get(kind, [])


def test_refuses_to_leave_out_unknown_parts():
    with pytest.raises(AssertionError):
        mix(frozenset({"set none"}))
