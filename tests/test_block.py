"""Inputs of a block's modules, in the original and in what it has become, where some sequences skip a module."""

from types import SimpleNamespace

import torch
from torch import nn

from squeeze.model import block as blocks
from squeeze.model.calibration import Activations, Stage
from squeeze.model.network import Call

SEQUENCES = torch.randn((5, 3, 4), generator=torch.Generator().manual_seed(0))  # [N, L, I]
SEQUENCES[1] = -SEQUENCES[1].abs()


class Skipping(nn.Module):
    """Runs `second` where the first value of a sequence is positive."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, hidden):
        out = self.first(hidden)
        return self.second(2 * hidden) if hidden[0, 0, 0] > 0 else out


def test_inputs_are_paired_with_the_original_ones_of_the_same_sequence(tmp_path):
    before, after = (Activations(tmp_path / name, *SEQUENCES.shape) for name in ("before", "after"))
    before.write(SEQUENCES)
    network, call = SimpleNamespace(device=torch.device("cpu")), Call((), {})
    planned = [Stage((("first",),)), Stage((("second",),))]
    block = Skipping().requires_grad_(False)
    with torch.inference_mode():
        theirs = blocks._original(SimpleNamespace(work=tmp_path, network=network), block, planned, before, after, call)
        assert list(theirs) == ["first"] and not (tmp_path / "second.inputs").exists()
        wanted = torch.stack([block(hidden[None])[0] for hidden in SEQUENCES])
        torch.testing.assert_close(torch.stack(list(after.read(network.device))), wanted)
        both = Stage((("first",), ("second",)))
        found = blocks._statistics(block, both, before, theirs, call, network.device)
    x = SEQUENCES.reshape(-1, 4)
    torch.testing.assert_close(found["first"].cross, x.T @ x / len(x))
    assert found["second"].cross is None and 0 < found["second"].count < found["first"].count

    pairs = {"second": Activations(tmp_path / "pairs", *SEQUENCES.shape)}
    pairs["second"].write(3 * SEQUENCES)
    with torch.inference_mode():
        found = blocks._statistics(block, planned[1], before, pairs, call, network.device)
    ran = torch.cat([hidden for hidden in SEQUENCES if hidden[0, 0] > 0])
    torch.testing.assert_close(found["second"].cross, 6 * ran.T @ ran / len(ran))
