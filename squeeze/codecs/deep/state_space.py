"""Coding beside the state-space model of files of numerics version 1: it is fed every byte, and trained on the way.

At the end of each of its chunks it takes over the weights that were trained on the chunks before, and is trained on
the one just coded. Only what uses a dictionary of that version is still written so: codecs/recurrent knows more, and
costs less.
"""

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic, context_state, frequencies, ssm, ssm_training
from squeeze.codecs.bitmodels.meter import Meter
from squeeze.codecs.bitmodels.ssm_arrays import StateSpaceModel
from squeeze.codecs.deep import measure
from squeeze.codecs.deep.arrays import DeepModel
from squeeze.codecs.deep.model import begin_byte, code_byte
from squeeze.numerics.jit import inline, kernel


@inline
def _predict(m: DeepModel, network: StateSpaceModel) -> None:
    """Feed the state-space model the latest byte; a register tells the contexts what it expects next."""
    ssm.predict(network, np.int64(m.registers[context_state.HISTORY] & np.uint64(0xFF)))
    m.registers[context_state.TOP_BYTE] = frequencies.top_prediction(network.counts)


@kernel
def code(
    m: DeepModel,
    network: StateSpaceModel,
    coder: np.ndarray,
    coded: np.ndarray,
    begin: int,
    end: int,
    decoding: bool,
    meter: Meter | None = None,
    known: int = 0,
) -> int:
    """As `coder.code`."""
    for position in range(begin, end):
        if arithmetic.is_over(coder, coded, decoding):
            return position
        begin_byte(m)
        if meter is not None:
            measure.begin_byte(meter, m, network, position - known, known)
        code_byte(m, coder, coded, position, decoding, meter)
        if meter is not None:
            measure.end_byte(meter, m, network, position - known, position)
        if ssm.update(network, np.int64(m.data[position])):
            bank = network.state.bank
            ssm.refresh(network)
            ssm.next_chunk(network)
            ssm_training.train(network, bank)
        _predict(m, network)
    return end
