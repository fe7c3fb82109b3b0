"""The matrix by which a tied embedding is quantised, from what an error of one of its rows costs.

A row of the embedding is looked up if its token is read, and multiplied if the token is predicted. Let d be an error of
the row. Each time that the token is read, the loss rises by d S d / 2. S is the second moment of the gradients at the
first block's inputs (the empirical Fisher information), times the square of what rows are multiplied by (Gemma). At a
position with the final hidden state x where the token has the probability p, the loss rises by (1 - p) p (d x)^2 / 2.
Tokens are about as often read as predicted, so both terms grow alike for all rows. One matrix serves them: S + k H. H
is the mean of x x^T, and k that of 1 - sum p^2.
"""

from contextlib import closing

import torch
from torch import nn

from squeeze.engine.calibration import InputStatistics
from squeeze.engine.gradients import backward, next_token
from squeeze.engine.network import Network

__all__ = ["tied_statistics"]

_TOKENS = 4096  # that the gradients are estimated from, if that is at least one sequence


def tied_statistics(network: Network, head: str, tokens: torch.Tensor) -> InputStatistics:
    """Return statistics for an embedding that is tied to the output head, as if they were of its inputs.

    Args:
        network: the network, which runs forward and back, block by block.
        head: name of the head.
        tokens: calibration sequences [N, L].
    """
    read, predicted, spread = InputStatistics(), InputStatistics(), [0.0]

    def loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        spread[0] += float((1 - torch.softmax(logits.detach().float(), -1).square().sum(-1)).sum())
        return next_token(logits, ids)

    def observe(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        predicted.add(args[0].detach())

    sample = tokens[: max(_TOKENS // tokens.shape[1], 1)]
    handle = network.module(head).register_forward_pre_hook(observe)
    try:
        for _, _, run in backward(network, sample, loss, lambda gradient: read.add(gradient.detach())):
            run()
    finally:
        handle.remove()
    read.finish()
    predicted.finish()
    assert read.hessian is not None and predicted.hessian is not None
    total = spread[0] / predicted.count * predicted.hessian
    if factor := _factor(network, sample[:1]):
        total += factor**2 * read.hessian
    return InputStatistics(count=predicted.count, hessian=total)


def _factor(network: Network, tokens: torch.Tensor) -> float:
    """Return by what a row of the embedding is multiplied before the first block, estimated on one sequence [1, L].

    It is 0 if rows have another width than the first block's inputs, so that an error of a row is no error of these.
    """
    name = next(
        name for name, module in network.model.named_modules() if module is network.model.get_input_embeddings()
    )
    source = network.sources[f"{name}.weight"]
    rows = network.checkpoint.load([source])[source][tokens[0]].float()
    with closing(network.first_inputs(tokens)) as states:
        hidden = network.calls(tokens)[0].hidden(next(states)).cpu().reshape(len(rows), -1).float()
    return float((hidden * rows).sum() / rows.square().sum()) if hidden.shape == rows.shape else 0.0
