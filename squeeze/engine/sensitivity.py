"""The matrix by which a tied embedding is quantised, from what an error of one of its rows costs.

A row of the embedding is looked up if its token is read, and multiplied if the token is predicted. Let d be an error of
the row. Each time that the token is read, the loss rises by d S d / 2. S is the second moment of the gradients at the
embedding's output (the empirical Fisher information). At a position with the final hidden state x where the token has
the probability p, the loss rises by (1 - p) p (d x)^2 / 2. Tokens are about as often read as predicted, so both terms
grow alike for all rows. One matrix serves them: S + k H. H is the mean of x x^T, and k that of 1 - sum p^2.
"""

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
    total = read.hessian + spread[0] / predicted.count * predicted.hessian
    return InputStatistics(count=predicted.count, hessian=total)
