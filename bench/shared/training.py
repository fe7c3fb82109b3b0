"""A small transformer that is trained with Adam, for the benchmarks of checkpoints that follow each other."""

import torch

__all__ = ["Training", "Weights"]

_WIDTH, _VOCABULARY, _LAYERS = 512, 4096, 6
Weights = dict[str, torch.Tensor]


class Network(torch.nn.Module):
    """A transformer that predicts the next byte pair of a repeated text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(_VOCABULARY, _WIDTH)
        layer = torch.nn.TransformerEncoderLayer(_WIDTH, 8, 4 * _WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        out: torch.Tensor = self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True))
        return out


class Training:
    """A training run with master weights in float32. weights: a copy of them in bf16 after each step."""

    def __init__(self, steps: int, seed: int, rate: float = 3e-4):
        """Train a new network for some steps."""
        torch.manual_seed(seed)
        self._network = Network()
        named = dict(self._network.named_parameters())
        self.weights: Weights = {name: tensor.detach().bfloat16() for name, tensor in named.items()}
        self.continue_at(rate, seed)
        for _ in range(steps):
            self.step()
        self._start = {name: tensor.detach().clone() for name, tensor in named.items()}

    def continue_at(self, rate: float, seed: int) -> None:
        """Go on with another learning rate and other data."""
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=rate)
        self._random = torch.Generator().manual_seed(seed)

    def restart(self) -> None:
        """Go back to the weights after the first steps."""
        for name, tensor in self._network.named_parameters():
            tensor.data.copy_(self._start[name])

    def step(self) -> None:
        """Take a step."""
        start = torch.randint(0, _VOCABULARY, (8, 1), generator=self._random)
        factor = int(torch.randint(3, 97, (1,), generator=self._random))
        tokens = (start + factor * torch.arange(33) ** 2) % _VOCABULARY
        logits = self._network(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        for name, tensor in self._network.named_parameters():
            self.weights[name].copy_(tensor.detach())
