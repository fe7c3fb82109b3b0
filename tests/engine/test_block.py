"""Inputs of a block's modules, in the original and in what it has become, where some sequences skip a module."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from squeeze.engine import gathering, sharding
from squeeze.engine.calibration import InputStatistics, Stage, Stop
from squeeze.engine.network import run_block
from squeeze.engine.sharding import Setting
from squeeze.engine.shortcuts import CachedInputs, Shortcuts
from squeeze.engine.walking import Call

CPU = torch.device("cpu")
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


def _shards(folder, every=1):
    """Return shards of SEQUENCES in files, with the original of one sequence in `every`."""
    ids = torch.zeros(SEQUENCES.shape[:2], dtype=torch.int64)
    shards = sharding.shards_of(folder, len(ids), (ids.shape[1], SEQUENCES.shape[2]), 0, True, every)
    for shard in shards:
        last = shard.first + shard.inputs.count
        shard.inputs.write(SEQUENCES[shard.first : last])
        shard.original[0].write(SEQUENCES[number] for number in range(shard.first, last) if number % every == 0)
    return shards


@pytest.fixture(params=[8192, 6])
def tokens_of_a_shard(request, monkeypatch):
    monkeypatch.setattr(sharding, "_TOKENS", request.param)
    return request.param


def test_inputs_are_paired_with_the_original_ones_of_the_same_sequence(tmp_path, tokens_of_a_shard):
    setting, planned = Setting(Call(), tmp_path, CPU), [Stage((("first",),)), Stage((("second",),))]
    block, shards = Skipping().requires_grad_(False), _shards(tmp_path)
    assert len(shards) == (1 if tokens_of_a_shard > 6 else 3)
    with torch.inference_mode():
        reached = [gathering.original(block, setting, shard, ["first", "second"]) for shard in shards]
        assert set.intersection(*reached) == {"first"}
        wanted = torch.stack([block(hidden[None])[0] for hidden in SEQUENCES])
        found = torch.cat([torch.stack(list(shard.original[1].read(CPU))) for shard in shards])
        torch.testing.assert_close(found, wanted)
        both = Stage((("first",), ("second",)))
        parts = (gathering.statistics(block, setting, shard, both, ["first"]) for shard in shards)
        sums = gathering.joined(both, parts).sums
    torch.testing.assert_close(sums["first"].cross, torch.zeros(4, 4))
    ran = torch.cat(list(SEQUENCES))
    torch.testing.assert_close(sums["first"].hessian, ran.T @ ran / len(ran))
    assert sums["second"].cross is None and 0 < sums["second"].count < sums["first"].count

    shards = _shards(tmp_path, every=2)
    for shard in shards:
        shard.file(tmp_path, "second.inputs", 4, original=True).write(3 * x for x in shard.original[0].read(CPU))
    with torch.inference_mode():
        parts = (gathering.statistics(block, setting, shard, planned[1], ["second"]) for shard in shards)
        second = gathering.joined(planned[1], parts).sums["second"]
    ran = torch.cat([hidden for hidden in SEQUENCES[::2] if hidden[0, 0] > 0])
    torch.testing.assert_close(second.cross, 2 * ran.T @ ran / len(ran))  # of y = 3 h beside x = 2 h
    assert second.paired == len(ran) < second.count


def test_sums_of_shards_are_the_sum_of_all(tmp_path):
    x, y = torch.randn((2, 900, 300), generator=torch.Generator().manual_seed(1))
    whole, parts = InputStatistics(), InputStatistics()
    whole.add(x, y)
    for rows in torch.arange(900).split(250):
        shard = InputStatistics()
        shard.add(x[rows], y[rows])
        parts.join(shard)
    parts.join(InputStatistics())
    assert parts.strips[0].dtype == torch.float64
    for one in (whole, parts):
        one.finish()
    assert parts.hessian.dtype == parts.cross.dtype == torch.float32
    assert (parts.count, parts.paired) == (900, 900) and torch.equal(parts.hessian, parts.hessian.T)
    torch.testing.assert_close(parts.hessian, (x.double().T @ x.double() / 900).float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(parts.cross, whole.cross, rtol=1e-4, atol=1e-4)


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
def test_what_is_compressed_does_not_run_again(tmp_path, tokens_of_a_shard):
    torch.manual_seed(0)
    block, names, shards = Outer(), ["inner.wide", "inner.narrow", "last"], _shards(tmp_path)
    setting, stage = Setting(Call(), tmp_path, CPU), Stage((("inner.narrow",),))
    shortcuts = Shortcuts(block, names, lambda: block(SEQUENCES[:1]))
    assert shortcuts.ends == {"inner.narrow": CachedInputs("inner", 2, 8, (1, 3))}
    assert shortcuts.take(["inner.wide"], []) == []
    parts = (gathering.statistics(block, setting, shard, stage, (), shortcuts.ends) for shard in shards)
    kept = gathering.joined(stage, parts, shortcuts.ends).recorded
    block.inner.narrow.weight.mul_(0.5)
    wanted = [block(hidden[None]) for hidden in SEQUENCES]
    assert kept == {"inner.narrow"} and shortcuts.take(["inner.narrow"], kept) == []
    setting = replace(setting, cached=shortcuts.used)
    block.inner.runs = 0
    for _ in range(2):
        found = []
        for shard in shards:
            with setting.running(block, shard) as sequences:
                found += [block(hidden[None]) for hidden in sequences]
        assert all(map(torch.equal, found, wanted))
    assert block.inner.runs == 0
    assert torch.equal(block(SEQUENCES[:1]), wanted[0]) and block.inner.runs == 1


@torch.inference_mode()
def test_a_part_runs_again_while_a_matrix_in_it_waits(tmp_path):
    block = Outer()
    shortcuts = Shortcuts(block, ["inner.wide", "inner.narrow"], lambda: block(SEQUENCES[:1]))
    assert shortcuts.take(["inner.narrow"], ["inner.narrow"]) == ["inner.narrow"]
    assert not shortcuts.used


@pytest.mark.parametrize("error", [Stop(), OSError(28, "No space left on device")])
def test_what_is_no_fault_of_a_block_is_not_said_to_be(error):
    class Block(nn.Module):
        def forward(self, hidden):
            raise error

    with pytest.raises(type(error)):
        run_block(Block(), torch.zeros(2, 4), Call())
