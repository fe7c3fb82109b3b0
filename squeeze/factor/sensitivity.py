"""Prediction of the rise of a model's loss when a matrix is put into low rank, from statistics of its patches.

A matrix is divided into 8 x 8 patches; each has local spectra, magnitudes, the size of its inputs, the depth of its
block and the kind of its layer. A small convolutional network gives every patch a score. The damage of a matrix is the
sum of exp(score) over its patches, so it ranks matrices and patches (after Minima's sensitivity predictor). Its
weights, in sensitivity.safetensors, were trained on damage that `measure` found; `train` does so for another model. It
needs no gradients and one forward pass; curvature.py needs gradients and more memory, and is more exact.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.engine.calibration import InputStatistics
from squeeze.engine.network import find_blocks, weight_of
from squeeze.errors import FormatError, ModelError, SqueezeError
from squeeze.factor.lowrank import WhitenedSVD, rank_for

__all__ = [
    "Example",
    "Predictor",
    "examples",
    "input_moments",
    "kind_of",
    "measure",
    "spearman",
    "spectral",
    "train",
    "watched",
]

GRID = 8  # patches along each side of a matrix
KINDS = ("q", "k", "v", "o", "gate", "up", "down")
FEATURES = 8 + len(KINDS) + 1  # numbers that describe a patch
KEEP = 0.7  # share of a matrix's values at which damage is measured
WEIGHTS = Path(__file__).with_name("sensitivity.safetensors")
_EPSILON = 1e-8


@dataclass(frozen=True)
class Example:
    """One matrix.

    Attributes:
        features: float32 [FEATURES, GRID, GRID].
        layer: number of its block.
        damage: measured rise of the loss, nats a token.
        model: name of its model; empty for the model to be predicted.
    """

    name: str
    layer: int
    features: torch.Tensor
    damage: float = 0.0
    model: str = ""


class Predictor(nn.Module):
    """A network from features [N, FEATURES, GRID, GRID] to the log damage of each patch [N, GRID, GRID]."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES, 1, 1))
        self.register_buffer("scale", torch.ones(FEATURES, 1, 1))
        self.layers = nn.Sequential(
            nn.Conv2d(FEATURES, width, 1),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1, padding_mode="replicate"),
            nn.GELU(),
            nn.Conv2d(width, 1, 1),
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        cells: torch.Tensor = self.layers((features - self.mean) / self.scale)[:, 0]
        return cells

    def log_damage(self, features: torch.Tensor) -> torch.Tensor:
        """Return the log damage of whole matrices [N]."""
        damages: torch.Tensor = self(features).flatten(1).logsumexp(1)
        return damages

    def predict(self, unmeasured: Sequence[Example]) -> dict[str, float]:
        """Return the damage in nats a token by name; beyond the models of the training only its order is meaningful."""
        with torch.no_grad():
            damages = self.log_damage(torch.stack([one.features for one in unmeasured])).exp()
        return dict(zip([one.name for one in unmeasured], damages.tolist(), strict=True))

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> "Predictor":
        """Return the predictor that comes with the package. Raises ModelError if the file is invalid."""
        try:
            tensors = tensorfile.load(path)
            predictor = cls(len(tensors["layers.0.bias"]))
            predictor.load_state_dict(tensors)
        except (OSError, KeyError, RuntimeError, ValueError, FormatError) as error:
            raise ModelError(f"{path}: not a sensitivity predictor") from error
        return predictor.eval()

    def save(self, path: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, path)


def kind_of(name: str) -> str:
    """Return the kind of a layer by its module's name: one of KINDS, or another word."""
    return name.rpartition(".")[2].removesuffix("_proj")


def features_of(weight: torch.Tensor, inputs: torch.Tensor, depth: float, kind: str) -> torch.Tensor:
    """Return the features of a matrix, float32 [FEATURES, GRID, GRID].

    Args:
        weight: [O, I].
        inputs: mean squares of its inputs [I].
        depth: of its block, 0 to 1.
        kind: of its layer.
    """
    weight = weight.detach().float()
    size = [max(1, n // GRID) for n in weight.shape]
    rows, columns = (torch.linspace(0, n - s, GRID).long() for n, s in zip(weight.shape, size, strict=True))
    root = inputs.float().clamp(min=0).sqrt()
    maps = torch.zeros(FEATURES, GRID, GRID)
    for a, row in enumerate(rows.tolist()):
        for b, column in enumerate(columns.tolist()):
            patch = weight[row : row + size[0], column : column + size[1]]
            scale = root[column : column + size[1]]
            maps[:8, a, b] = _statistics(patch, scale)
    maps[8] = depth
    channel = KINDS.index(kind) if kind in KINDS else -1
    if channel >= 0 and 9 + channel < FEATURES:
        maps[9 + channel] = 1
    return maps


def _statistics(patch: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return eight statistics of a patch.

    Five are logarithms: of the root mean squares of the weights, of the inputs and of the contribution to outputs, of
    the largest value, and of the condition number. Three are shares of energy: outside the first quarter and half of
    the spectrum, and after whitening.
    """
    plain = torch.linalg.svdvals(patch).square()
    behind = torch.linalg.svdvals(patch * scale).square()
    energy, quarter, half = plain.sum() + _EPSILON, max(1, len(plain) // 4), max(1, len(plain) // 2)
    return torch.stack([
        (patch.square().mean() + _EPSILON).log(),
        (patch.abs().max() + _EPSILON).log(),
        (scale.square().mean() + _EPSILON).log(),
        (behind.sum() + _EPSILON).log() - torch.tensor(float(patch.shape[0])).log(),
        (plain[0] + _EPSILON).log() - (plain[-1] + _EPSILON).log(),
        plain[quarter:].sum() / energy,
        plain[half:].sum() / energy,
        behind[half:].sum() / (behind.sum() + _EPSILON),
    ])  # fmt: skip


@contextmanager
def watched(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, InputStatistics]]:
    """Collect the mean of x x^T, float32 [I, I], of each linear module over the inputs that reach it in the `with`
    block.

    Modules that no input reaches have none; modules called with the same tensor share theirs.
    """
    statistics_of: dict[str, InputStatistics] = {}
    last: tuple[torch.Tensor | None, InputStatistics] = None, InputStatistics()

    def hook(name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def observe(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            nonlocal last
            if args[0] is not last[0]:
                last = args[0], statistics_of.setdefault(name, InputStatistics())
                last[1].add(args[0])
            statistics_of[name] = last[1]

        return observe

    hooks = [model.get_submodule(name).register_forward_pre_hook(hook(name)) for name in names]
    try:
        yield statistics_of
    finally:
        for one in hooks:
            one.remove()
    for statistics in {id(one): one for one in statistics_of.values()}.values():
        statistics.finish()


@torch.no_grad()
def input_moments(model: nn.Module, tokens: torch.Tensor, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the mean of x x^T of each module's inputs on tokens [N, L]."""
    with watched(model, names) as seen:
        for ids in torch.split(tokens, 1):
            model(ids, use_cache=False)
    return {name: one.hessian for name, one in seen.items() if one.hessian is not None}


def examples(model: nn.Module, names: Sequence[str], moments: Mapping[str, torch.Tensor]) -> list[Example]:
    """Return the examples of the linear modules of a model's blocks, without measured damage."""
    blocks = find_blocks(model)
    described = []
    for name in names:
        layer = next(i for i, block in enumerate(blocks) if name.startswith(f"{block}."))
        depth = layer / max(len(blocks) - 1, 1)
        weight = weight_of(model.get_submodule(name))
        described.append(Example(name, layer, features_of(weight, moments[name].diagonal(), depth, kind_of(name))))
    return described


@torch.no_grad()
def measure(
    model: nn.Module,
    tokens: torch.Tensor,
    names: Sequence[str],
    moments: Mapping[str, torch.Tensor],
    keep: float = KEEP,
    progress: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """Measure the KL divergence from the model when one matrix at a time is put into low rank, in nats a token.

    Only the blocks after the matrix run again.

    Args:
        model: the model.
        tokens: [N, L].
        names: of the matrices.
        moments: of their inputs, for whitening.
        keep: share of a matrix's values that is kept.
        progress: called with the number of further matrices that are done.
    """
    blocks = [model.get_submodule(name) for name in find_blocks(model)]
    block_inputs: list[torch.Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda module, args: block_inputs.append(args[0])) for block in blocks]
    expected = torch.log_softmax(model(tokens, use_cache=False).logits.float(), -1)
    for hook in hooks:
        hook.remove()
    divergences = {}
    for name in names:
        layer = next(i for i, block in enumerate(find_blocks(model)) if name.startswith(f"{block}."))
        weight = weight_of(model.get_submodule(name))
        before = weight.clone()
        weight.copy_(WhitenedSVD(keep=keep).compress(before, moments[name]).tensor.dequantize().to(weight.dtype))
        try:
            logits = _from_block(model, tokens, blocks, layer, block_inputs[layer])
        finally:
            weight.copy_(before)
        log_probs = torch.log_softmax(logits.float(), -1)
        divergences[name] = float((expected.exp() * (expected - log_probs)).sum(-1).mean())
        if progress:
            progress(1)
    return divergences


def _from_block(
    model: nn.Module, tokens: torch.Tensor, blocks: Sequence[nn.Module], first: int, hidden: torch.Tensor
) -> torch.Tensor:
    """Return the logits, given the hidden states before the block `first`."""
    for block in blocks[:first]:
        block.forward = lambda x, *args, **kwargs: x
    hook = blocks[first].register_forward_pre_hook(lambda module, args: (hidden, *args[1:]))
    try:
        logits: torch.Tensor = model(tokens, use_cache=False).logits
    finally:
        hook.remove()
        for block in blocks[:first]:
            del block.forward
    return logits


def train(measured: Sequence[Example], steps: int = 600, rate: float = 3e-3, seed: int = 0) -> Predictor:
    """Train a predictor by the squared error of log damages.

    For examples of other models, whose losses have other scales, differences from the model's mean are used. Raises
    SqueezeError if there are fewer than two examples.

    Args:
        measured: examples with damage.
        steps: of training.
        rate: learning rate.
        seed: of the initial weights.
    """
    if len(measured) < 2:
        raise SqueezeError(f"expected at least two measured matrices, got {len(measured)}")
    features = torch.stack([one.features for one in measured])
    targets = torch.tensor([max(one.damage, _EPSILON) for one in measured]).log()
    models = {one.model for one in measured} - {""}
    by_model = [[i for i, one in enumerate(measured) if one.model == name] for name in models]
    unnamed = [i for i, one in enumerate(measured) if not one.model] or list(range(len(measured)))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        predictor = Predictor()
        predictor.mean.copy_(features.mean((0, 2, 3))[:, None, None])
        predictor.scale.copy_(features.std((0, 2, 3)).clamp(min=1e-3)[:, None, None])
        predictor.layers[-1].bias.data.fill_(float(targets[unnamed].mean()) - torch.tensor(float(GRID**2)).log())  # type: ignore[union-attr, operator]
        optimiser = torch.optim.AdamW(predictor.parameters(), lr=rate, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(steps):
            noisy = features + 0.1 * predictor.scale * torch.randn_like(features)
            error = predictor.log_damage(noisy) - targets
            for alike in by_model:
                error = error.index_add(0, torch.tensor(alike), -error[alike].mean().expand(len(alike)))
            loss = error.square().mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return predictor.eval()


def spectral(weight: torch.Tensor, keep: float = KEEP) -> float:
    """Return the share of a matrix's squared singular values beyond the rank that keeps `keep` of its values.

    This is the plain heuristic to compare with.
    """
    values = torch.linalg.svdvals(weight.detach().float()).square()
    return float(values[rank_for(weight.shape[0], weight.shape[1], keep) :].sum() / values.sum())


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation of two sequences, ignoring ties."""
    ranks = torch.stack([torch.tensor(values).argsort().argsort().double() for values in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])
