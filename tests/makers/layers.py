"""Make a layer's weight and the statistics of its inputs."""

import torch


def problem(outputs=24, inputs=128, seed=0, tokens=400):
    """Return a weight and the Hessian of correlated inputs of unequal size.

    Args:
        outputs: rows of the weight
        inputs: columns of the weight
        seed: seed of both
        tokens: number of inputs that the Hessian is the mean of
    """
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn((inputs, inputs), generator=generator) / inputs**0.5 + torch.eye(inputs)
    sizes = torch.rand(inputs, generator=generator) * 3 + 0.1
    x = torch.randn((tokens, inputs), generator=generator) @ mix * sizes
    return torch.randn((outputs, inputs), generator=generator), x.T @ x / tokens
