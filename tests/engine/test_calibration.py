"""Hidden states in files: what is written is read again, or one line."""

import pytest
import torch

from squeeze.engine.calibration import Activations
from squeeze.errors import SqueezeError


def test_hidden_states_are_read_again(tmp_path):
    states, kept = torch.randn(3, 5, 4), Activations(tmp_path / "0.hidden", 3, 5, 4)
    kept.write(states)
    assert kept.whole()
    assert torch.equal(torch.stack(list(kept.read(torch.device("cpu")))), states)


def test_a_file_that_is_cut_off_is_not_read_to_its_end(tmp_path):
    states, kept = torch.randn(3, 5, 4), Activations(tmp_path / "0.hidden", 3, 5, 4)
    kept.write(states)
    kept.path.write_bytes(kept.path.read_bytes()[:-3])
    reading = kept.read(torch.device("cpu"))
    assert torch.equal(next(reading), states[0]) and torch.equal(next(reading), states[1])
    with pytest.raises(SqueezeError, match=r"0\.hidden: the end of its hidden states is gone: run the command again$"):
        next(reading)
