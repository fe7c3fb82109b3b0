"""Inputs of a block's modules, in the original and in what it has become, where some sequences skip a module."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from squeeze.engine import gathering
from squeeze.engine.calibration import Activations, Stage, Stop
from squeeze.engine.network import Call, run_block
from squeeze.engine.rounding import RoundedInputs
from squeeze.engine.shortcuts import Shortcuts

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


def _gathered(block, stage, shortcuts, originals, every):
    how = {"rounded": RoundedInputs(block, lambda name: None), "call": Call((), {}), "device": torch.device("cpu")}
    return gathering.statistics_of(block, stage, shortcuts=shortcuts, originals=originals, every=every, **how)


def test_inputs_are_paired_with_the_original_ones_of_the_same_sequence(tmp_path):
    before, after = (Activations(tmp_path / name, *SEQUENCES.shape) for name in ("before", "after"))
    before.write(SEQUENCES)
    network, call = SimpleNamespace(device=torch.device("cpu")), Call((), {})
    planned = [Stage((("first",),)), Stage((("second",),))]
    block = Skipping().requires_grad_(False)
    with torch.inference_mode():
        shortcuts = Shortcuts(block, [], lambda: None, before, tmp_path)
        theirs = gathering.original(block, planned, before, after, call, tmp_path, network.device)
        assert list(theirs) == ["first"] and not (tmp_path / "second.inputs").exists()
        wanted = torch.stack([block(hidden[None])[0] for hidden in SEQUENCES])
        torch.testing.assert_close(torch.stack(list(after.read(network.device))), wanted)
        both = Stage((("first",), ("second",)))
        found = _gathered(block, both, shortcuts, theirs, 1)
    torch.testing.assert_close(found["first"].cross, torch.zeros(4, 4))
    assert found["second"].cross is None and 0 < found["second"].count < found["first"].count

    pairs = {"second": Activations(tmp_path / "pairs", 3, *SEQUENCES.shape[1:])}
    pairs["second"].write(3 * SEQUENCES[::2])
    with torch.inference_mode():
        found = _gathered(block, planned[1], shortcuts, pairs, 2)
    ran = torch.cat([hidden for hidden in SEQUENCES[::2] if hidden[0, 0] > 0])
    torch.testing.assert_close(found["second"].cross, 2 * ran.T @ ran / len(ran))  # of y = 3 h beside x = 2 h
    assert found["second"].paired == len(ran) < found["second"].count


class Inner(nn.Module):
    """A tuple of what its last module says and nothing; counts its runs."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.runs = nn.Linear(4, 8), nn.Linear(8, 4), 0

    def forward(self, hidden):
        self.runs += 1
        return self.narrow(torch.relu(self.wide(hidden))), None


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = Inner(), nn.Linear(4, 4)

    def forward(self, hidden):
        return hidden + self.last(hidden + self.inner(hidden)[0])


@torch.inference_mode()
def test_what_is_compressed_does_not_run_again(tmp_path):
    torch.manual_seed(0)
    inputs, block = Activations(tmp_path / "inputs", *SEQUENCES.shape), Outer()
    inputs.write(SEQUENCES)
    names, device = ["inner.wide", "inner.narrow", "last"], torch.device("cpu")
    shortcuts = Shortcuts(block, names, lambda: block(SEQUENCES[:1]), inputs, tmp_path)
    assert shortcuts.ends == {"inner.narrow": ("inner", 2)}
    shortcuts.take(["inner.wide"])
    for hidden in shortcuts.read(device):
        shortcuts.keep(["inner.narrow"], torch.relu(block.inner.wide(hidden)))
    block.inner.narrow.weight.mul_(0.5)
    wanted = [block(hidden[None]) for hidden in SEQUENCES]
    shortcuts.take(["inner.narrow"])
    block.inner.runs = 0
    for _ in range(2):
        assert all(map(torch.equal, (block(hidden[None]) for hidden in shortcuts.read(device)), wanted))
    assert block.inner.runs == 0
    shortcuts.close()
    assert torch.equal(block(SEQUENCES[:1]), wanted[0]) and block.inner.runs == 1
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]


@torch.inference_mode()
def test_a_part_runs_again_while_a_matrix_in_it_waits(tmp_path):
    inputs, block = Activations(tmp_path / "inputs", *SEQUENCES.shape), Outer()
    inputs.write(SEQUENCES)
    shortcuts = Shortcuts(block, ["inner.wide", "inner.narrow"], lambda: block(SEQUENCES[:1]), inputs, tmp_path)
    for hidden in shortcuts.read(torch.device("cpu")):
        shortcuts.keep(["inner.narrow"], torch.relu(block.inner.wide(hidden)))
    shortcuts.take(["inner.narrow"])
    assert len(list(shortcuts.read(torch.device("cpu")))) == len(SEQUENCES) and "forward" not in vars(block.inner)
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]


@pytest.mark.parametrize("error", [Stop(), OSError(28, "No space left on device")])
def test_what_is_no_fault_of_a_block_is_not_said_to_be(error):
    class Block(nn.Module):
        def forward(self, hidden):
            raise error

    with pytest.raises(type(error)):
        run_block(Block(), torch.zeros(2, 4), Call((), {}))
