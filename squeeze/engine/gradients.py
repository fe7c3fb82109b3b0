"""Backward passes through a network of which one block is in memory.

The blocks run forward once, and the inputs of each go to a file. Then, from the last block to the first, each runs
again and computes the gradient of its inputs from that of its outputs.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.pretrained import explained
from squeeze.engine.calibration import Activations
from squeeze.engine.forward import each_block, states_in
from squeeze.engine.network import Network, run_block
from squeeze.engine.surroundings import surroundings
from squeeze.engine.tracing import handing_on
from squeeze.engine.walking import Call
from squeeze.errors import ModelError
from squeeze.system.machine import trim_memory

__all__ = ["Loss", "backward", "head_of", "next_token"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # logits [L, V], tokens [L] -> loss


def next_token(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the sum over tokens of the next token's negative log-likelihood, in nats."""
    return nn.functional.cross_entropy(logits[:-1].float(), ids[1:], reduction="sum")


def backward(
    network: Network,
    tokens: torch.Tensor,
    loss: Loss = next_token,
    first: Callable[[torch.Tensor], None] | None = None,
) -> Iterator[tuple[str, nn.Module, Callable[[], None]]]:
    """Yield each block by name, loaded, from the last to the first, with a function that runs it forward and back.

    The function runs all sequences, and has to be called once before the next block is requested. The gradient is that
    of the loss, summed over sequences.

    Args:
        network: the network.
        tokens: sequences [N, L].
        loss: of a sequence.
        first: called with the gradient [1, L, H] of the first block's inputs, for each sequence, after all blocks.

    Raises:
        SqueezeError: the network cannot run the tokens.
    """
    network.check(tokens)
    if not network.is_causal:
        raise ModelError(
            f"{network.checkpoint.folder}: expected a causal language model, whose loss this method needs, got "
            f"{type(network.model).__name__}: choose a method that takes only inputs, such as whitened"
        )
    calls = network.calls(tokens)
    with tempfile.TemporaryDirectory() as folder:
        states = states_in(folder, network, tokens)
        for _, _, run_forward in each_block(network, tokens, calls, lambda number: states("hidden", number)):
            run_forward()
        last = len(network.blocks)
        states("gradient", last).write(_of_loss(network, tokens, states("hidden", last), loss, calls[-1]))
        for number in reversed(range(last)):
            name = network.blocks[number]
            block = network.load(name)

            def run(number: int = number, block: nn.Module = block) -> None:
                before, after = states("hidden", number), states("gradient", number + 1)
                states("gradient", number).write(_back(network, block, calls[number], before, after))

            yield name, block, run
            states("hidden", number).path.unlink()
            states("gradient", number + 1).path.unlink()
            network.release(name)
            trim_memory()
        if first:
            for gradient in states("gradient", 0).read(network.device):
                first(calls[0].hidden(gradient))


def _back(
    network: Network, block: nn.Module, call: Call, before: Activations, after: Activations
) -> Iterator[torch.Tensor]:
    """Yield the gradients [L, H] of a block's inputs."""
    for hidden, gradient in zip(before.read(network.device), after.read(network.device), strict=True):
        with torch.enable_grad():
            yield _gradient(network, run_block(block, hidden.requires_grad_(), call), hidden, gradient)


def _of_loss(
    network: Network, tokens: torch.Tensor, outputs: Activations, loss: Loss, call: Call
) -> Iterator[torch.Tensor]:
    """Yield the gradients [L, W] of the last block's outputs."""
    with head_of(network, tokens) as head:
        for ids, hidden in zip(tokens.to(network.device), outputs.read(network.device), strict=True):
            with torch.enable_grad():
                yield _gradient(network, loss(head(call.hidden(hidden.requires_grad_())), ids), hidden)


def _gradient(
    network: Network, value: torch.Tensor, hidden: torch.Tensor, gradient: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the gradient of a value with respect to `hidden`. Raises ModelError if no gradient reaches it."""
    if value.requires_grad:
        value.backward(gradient)  # type: ignore[no-untyped-call]
    if hidden.grad is None:
        raise ModelError(
            f"{network.checkpoint.folder}: {type(network.model).__name__} lets no gradient through, which this method "
            "needs: choose a method that takes only inputs, such as whitened"
        )
    return hidden.grad


@contextmanager
def head_of(network: Network, tokens: torch.Tensor) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Return a function from the last block's outputs [1, L, H] to logits [L, V].

    The model's own forward runs on the first of the sequences of tokens [N, L], with blocks that do nothing, so that
    everything after the blocks is applied.
    """
    inputs: list[torch.Tensor] = []
    blocks, calls = [network.module(name) for name in network.blocks], network.calls(tokens)
    ids = tokens[:1].to(network.device)

    def hand_on(number: int, *args: Any, **kwargs: Any) -> Any:
        return calls[number].shown(inputs[0])

    def head(hidden: torch.Tensor) -> torch.Tensor:
        inputs[:] = [hidden]
        with explained(network.checkpoint.folder):
            logits: torch.Tensor = network.model(input_ids=ids, use_cache=False).logits[0]
        return logits

    with surroundings(network, network.blocks), handing_on(blocks, hand_on):
        yield head
