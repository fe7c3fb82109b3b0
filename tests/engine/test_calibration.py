"""Hidden states in files: what is written is read again, or one line."""

import pytest
import torch

import squeeze
from squeeze.engine.calibration import Activations, InputStatistics
from squeeze.errors import OptionError, SqueezeError
from squeeze.quant.gptq import GPTQ
from tests.makers import networks


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
    with pytest.raises(SqueezeError, match=r"0\.hidden: hidden states are incomplete: run the command again$"):
        next(reading)


RANDOM = torch.Generator().manual_seed(2)


def inputs(tokens=31, width=6):
    """Tokens of which the first is a thousand times the others."""
    x = torch.randn(tokens, width, generator=RANDOM)
    x[0] *= 1000
    return x


@pytest.mark.parametrize("bound", [1.0, 4.0, None])
def test_a_token_counts_for_so_many_times_the_median_at_most(bound):
    sequences, others = [inputs(), inputs(), torch.zeros(5, 6)], [inputs(), inputs(), torch.ones(5, 6)]
    seen, hessian, cross = InputStatistics(bound=bound), torch.zeros(6, 6), torch.zeros(6, 6)
    for x, original in zip(sequences, others, strict=True):
        seen.add(x[None], original[None])
        lengths = x.square().sum(-1)
        for token, other, length in zip(x, original, lengths, strict=True):
            weight = 1.0 if bound is None or length == 0 else min(1.0, float(bound * lengths.median() / length))
            hessian += weight * torch.outer(token, token)
            cross += weight * torch.outer(other - token, token)
    seen.finish()
    assert seen.count == seen.paired == 67
    scale = float(hessian.abs().max())
    torch.testing.assert_close(seen.hessian, hessian / 67, rtol=1e-4, atol=1e-6 * scale)
    torch.testing.assert_close(seen.cross, cross / 67, rtol=1e-4, atol=1e-5 * scale)


def test_gptq_sees_the_others_again():
    """Under a bound the error on all tokens but the first is less."""
    x, weight = torch.randn(400, 32, generator=RANDOM), torch.randn(48, 32, generator=RANDOM)
    x = x @ torch.randn(32, 32, generator=RANDOM)
    x[0] *= 3000
    lost = {}
    for bound in (None, 4.0):
        seen = InputStatistics(bound=bound)
        seen.add(x)
        seen.finish()
        rounded = GPTQ(bits=3, group_size=16).apply(weight, seen.hessian).dequantize()
        lost[bound] = float((x[1:] @ (rounded - weight).T).square().sum())
    assert lost[4.0] < 0.8 * lost[None]


def test_it_is_an_option_of_the_calibration(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    source = networks.save("llama", tmp_path / "model")
    tokens = torch.randint(0, 300, (6, 32), generator=torch.Generator().manual_seed(1))
    made = {"calibration": tokens, "group_size": 32, "format": "dense"}
    reports = {
        bound: squeeze.quantize(source, "gptq", out=tmp_path / str(bound), bound=bound, **made) for bound in (None, 0.2)
    }
    assert reports[0.2].settings["bound"] == 0.2 and reports[None].settings["bound"] is None
    bytes_of = [(tmp_path / str(bound) / "model.safetensors").read_bytes() for bound in (None, 0.2)]
    assert bytes_of[0] != bytes_of[1]
    with pytest.raises(OptionError, match="bound must be above 0"):
        squeeze.quantize(source, "gptq", out=tmp_path / "out", bound=0, **made)
