"""Draw random matrices, one after another."""

import torch


class Draws:
    """Matrices and second moments from one generator: the same ones in the same order for a seed."""

    def __init__(self, seed: int):
        self.seed, self.generator = seed, torch.Generator()
        self.restart()

    def restart(self) -> None:
        self.generator.manual_seed(self.seed)

    def matrix(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def moments(self, size: int) -> torch.Tensor:
        """Return the second moments [size, size] of strongly correlated inputs."""
        inputs = self.matrix(4 * size, size) * torch.logspace(0, -2, size)
        turned = inputs @ torch.linalg.qr(self.matrix(size, size)).Q
        return turned.T @ turned / len(turned)
