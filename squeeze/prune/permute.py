"""Channel permutation: the order of channels with which an N:M pattern keeps most, in a Llama-type network.

Groups of N:M are neighbouring inputs. The order of inputs is free where the network does not depend on it. That holds
for the residual stream (one order for all), the hidden channels of each MLP, and the values of each attention head.
Pool and Yu 2021 (NVIDIA) search such orders by swaps, RIA (Zhang et al. 2024) by assigning one channel to each group;
this does the latter, with pairwise exchanges. The function stays.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from squeeze.checkpoint.architectures import architecture_of
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pattern import Pattern

__all__ = ["PermutedCheckpoint", "order_of"]

_EMBEDDING, _HEAD, _NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
_INTO = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_OUT = ("self_attn.o_proj", "mlp.down_proj")
_ROWS = 4096  # rows of scores that an order is chosen from
_ROUNDS = 4


def order_of(scores: torch.Tensor, pattern: Pattern, rounds: int = _ROUNDS) -> torch.Tensor:
    """Return an order of the columns of scores [R, C], int64 [C], in which N:M keeps more of their sum.

    Args:
        scores: [R, C]; the order is unchanged if C is not a multiple of M.
        pattern: N:M.
        rounds: passes over the places of a group.
    """
    columns = scores.shape[1]
    if not pattern.m or columns % pattern.m:
        return torch.arange(columns)
    groups = columns // pattern.m
    ranked = scores.sum(0).argsort(descending=True, stable=True)
    order = ranked.reshape(pattern.m, groups).T.contiguous()  # [G, M]: the largest columns spread over all groups
    grouped = scores[:, order.reshape(-1)].reshape(-1, groups, pattern.m)
    for _ in range(rounds):
        moved = 0
        for slot in range(pattern.m):
            other_slots = torch.cat([grouped[:, :, :slot], grouped[:, :, slot + 1 :]], -1)
            limit = other_slots.topk(pattern.n, -1).values[..., -1] if pattern.n < pattern.m else other_slots.amin(-1)
            candidates = grouped[:, :, slot]
            worth = torch.cdist(candidates.T, limit.T, p=1.0) / 2  # max(a, b) = (a + b + |a - b|) / 2
            target = _exchange(worth)
            moved += int((target != torch.arange(groups)).sum())
            grouped[:, :, slot], order[:, slot] = candidates[:, target], order[target, slot]
        if not moved:
            break
    return order.reshape(-1)


def _exchange(worth: torch.Tensor) -> torch.Tensor:
    """Return the item that each group takes, from worth [item, group]: swaps that gain, best first, from its own."""
    count = len(worth)
    item = torch.arange(count)
    for _ in range(10 * count):
        current = worth[item]  # [group, group]: of the item in each group, in every other
        own = current.diagonal()
        gain = current + current.T - own[:, None] - own[None, :]
        best, other = gain.max(1)
        exchanged = torch.zeros(count, dtype=torch.bool)
        swapped = False
        for a in best.argsort(descending=True).tolist():
            b = int(other[a])
            if float(best[a]) <= 1e-6 * float(own.abs().mean()):
                break
            if not exchanged[a] and not exchanged[b]:
                exchanged[a] = exchanged[b] = swapped = True
                item[a], item[b] = item[b].clone(), item[a].clone()
        if not swapped:
            break
    return item


@dataclass(frozen=True)
class PermutedCheckpoint(Checkpoint):
    """A checkpoint whose channels are reordered as they are loaded.

    Attributes:
        stream: order of the residual stream, int64 [H].
        hidden: order of the MLP's channels by block, int64 [F].
        values: orders of the inputs of o_proj and of the outputs of v_proj by block, int64.
    """

    stream: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    hidden: dict[str, torch.Tensor] = field(default_factory=dict)
    values: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint, squares: dict[str, torch.Tensor], pattern: Pattern) -> "PermutedCheckpoint":
        """Choose the orders for a checkpoint.

        Args:
            checkpoint: the original.
            squares: mean squares of the inputs of every matrix, from input_squares.
            pattern: N:M.

        Raises:
            ModelError: the architecture does not have Llama's names.
        """
        config = checkpoint.config
        message = f"{checkpoint.folder}: channels of {{kind}} cannot be reordered; those of {{known}} can"
        architecture_of(config, message, experts=False)
        heads = int(config["num_attention_heads"])
        shared = heads // int(config.get("num_key_value_heads") or heads)
        hidden, values, into = {}, {}, []
        for block in sorted({name.rpartition(".self_attn.")[0] for name in squares if ".self_attn.o_proj" in name}):

            def scores(leaf: str, block: str = block) -> torch.Tensor:
                weight = checkpoint.load([f"{block}.{leaf}.weight"])[f"{block}.{leaf}.weight"].float()
                return weight.square() * squares[f"{block}.{leaf}"]

            hidden[block] = order_of(_some(scores("mlp.down_proj"), _ROWS), pattern)
            values[block] = _values_order(scores("self_attn.o_proj"), heads, shared, pattern)
            into += [_some(scores(leaf), 1 + _ROWS // (len(_INTO) * 32)) for leaf in _INTO]
        return cls(
            checkpoint.folder, checkpoint.files, order_of(_some(torch.cat(into), _ROWS), pattern), hidden, values
        )

    def load(
        self, names: Iterable[str], device: torch.device | str = "cpu", strict: bool = True
    ) -> dict[str, torch.Tensor]:
        return {name: self._reordered(name, tensor) for name, tensor in super().load(names, device, strict).items()}

    def _reordered(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name in (_EMBEDDING, _HEAD):
            return tensor[:, self.stream].contiguous()
        if name == _NORM or name.endswith("layernorm.weight"):
            return tensor[self.stream]
        module, _, leaf = name.rpartition(".")
        block, path = ".".join(module.split(".")[:3]), ".".join(module.split(".")[3:])
        if block not in self.hidden:
            return tensor
        of_rows = {"self_attn.v_proj": self.values[block][1], "mlp.gate_proj": self.hidden[block]}
        of_rows |= {"mlp.up_proj": self.hidden[block], **dict.fromkeys(_OUT, self.stream)}
        of_inputs = {"self_attn.o_proj": self.values[block][0], "mlp.down_proj": self.hidden[block]}
        of_inputs |= dict.fromkeys(_INTO, self.stream)
        if path in of_rows:
            tensor = tensor[of_rows[path]]
        if leaf == "weight" and path in of_inputs:
            tensor = tensor[:, of_inputs[path]]
        return tensor.contiguous()


def _some(scores: torch.Tensor, rows: int) -> torch.Tensor:
    """Return at most `rows` rows, evenly spaced."""
    return scores[:: -(-len(scores) // rows)]


def _values_order(scores: torch.Tensor, heads: int, shared: int, pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """Return orders of the inputs of o_proj and the outputs of v_proj.

    Query heads that share values share an order.

    Args:
        scores: of o_proj [O, heads * size].
        heads: query heads.
        shared: query heads that share values.
        pattern: N:M.
    """
    size = scores.shape[1] // heads
    by_head = scores.reshape(-1, heads // shared, shared, size)
    inputs, outputs = [], []
    for number in range(heads // shared):
        order = order_of(_some(by_head[:, number].reshape(-1, size), _ROWS), pattern)
        outputs.append(number * size + order)
        inputs += [(number * shared + i) * size + order for i in range(shared)]
    return torch.cat(inputs), torch.cat(outputs)
