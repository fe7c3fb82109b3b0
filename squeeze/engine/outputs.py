"""Quality of a model without a perplexity: the distance of its outputs from the original's, and agreement of retrieval.

An output is a tensor of floats that the model's forward returns under a name, such as `logits` or `image_embeds`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.pretrained import explained
from squeeze.engine.inputs import Samples, arguments
from squeeze.engine.output_quality import OutputQuality
from squeeze.errors import ModelError, SqueezeError

__all__ = ["compare_outputs", "embeddings", "output_tensors", "retrieval_agreement"]

_HEADS = ("logits",)  # begin or end of the names of outputs that are logits of classes
_ROWS = 1 << 22  # values whose divergence is computed at once


class _Sums:
    """Sums of one output over samples."""

    def __init__(self, name: str, expected: torch.Tensor) -> None:
        self.name, self.shape, self.samples = name, list(expected.shape), 0
        self.squares = self.theirs = self.cosines = self.divergences = self.agreed = self.peak = 0.0
        self.vectors = self.values = 0
        self.is_head = expected.dim() > 1 and expected.shape[-1] > 1 and name.rpartition("_")[2] in _HEADS

    def add(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        x, y = expected.double().reshape(-1, expected.shape[-1]), found.double().reshape(-1, found.shape[-1])
        finite = x.isfinite()
        x, y = x.where(finite, 0), y.where(finite, 0)
        self.samples += 1
        self.squares += float((y - x).square().sum())
        self.theirs += float(x.square().sum())
        self.values += x.numel()
        self.peak = max(self.peak, float(x.abs().max()))
        self.vectors += len(x)
        self.cosines += float(nn.functional.cosine_similarity(x, y, dim=-1).sum())
        if self.is_head:
            for rows, others in zip(
                x.split(max(1, _ROWS // x.shape[1])), y.split(max(1, _ROWS // x.shape[1])), strict=True
            ):
                one, other = rows.log_softmax(-1), others.log_softmax(-1)
                self.divergences += float((one.exp() * (one - other)).sum())
                self.agreed += float((rows.argmax(-1) == others.argmax(-1)).sum())

    def quality(self) -> OutputQuality:
        tiny = torch.finfo(torch.float64).tiny
        noise = self.squares / max(self.values, 1)
        return OutputQuality(
            name=self.name,
            shape=self.shape,
            error=(self.squares / max(self.theirs, tiny)) ** 0.5,
            cosine=self.cosines / self.vectors if self.shape[-1] > 1 else None,
            kl_mean=self.divergences / self.vectors if self.is_head else None,
            top1_agreement=self.agreed / self.vectors if self.is_head else None,
            psnr=float(10 * torch.log10(torch.tensor(self.peak**2 / max(noise, tiny), dtype=torch.float64))),
            samples=self.samples,
        )


@torch.inference_mode()
def compare_outputs(
    model: nn.Module, original: nn.Module, samples: Samples, progress: Callable[[int], None] | None = None
) -> list[OutputQuality]:
    """Return the distance of each output of a model from the original's on the same samples.

    Args:
        model: the model.
        original: the model that it was made from.
        samples: inputs of the forward.
        progress: called with the number of further samples.

    Raises:
        ModelError: the models give other outputs, none at all, or some that are not numbers.
    """
    sums: dict[str, _Sums] = {}
    for sample in samples:
        expected, found = (outputs_of(one, sample) for one in (original, model))
        for name, values in expected.items():
            if bool(values.isnan().any() | values.isposinf().any()):
                raise ModelError(f"{type(original).__name__}: the original computes {name} that are not numbers")
            if name not in found or found[name].shape != values.shape:
                raise ModelError(f"{type(model).__name__}: gives no output {name} like that of the original")
            if not bool(found[name].where(values.isfinite(), 0).isfinite().all()):
                raise ModelError(f"{type(model).__name__}: computes {name} that are not numbers")
            sums.setdefault(name, _Sums(name, values)).add(found[name], values)
        if progress:
            progress(1)
    if not sums:
        raise ModelError(f"{type(original).__name__}: returns no tensor of floats, which could be compared")
    return [one.quality() for one in sums.values()]


def outputs_of(model: nn.Module, sample: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the outputs of a model for a sample by their names."""
    with explained(getattr(model, "name_or_path", "") or type(model).__name__):
        return output_tensors(model(**arguments(model, sample, next(model.parameters()).device)))


def output_tensors(result: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of floats in the result of a forward, by name."""
    if isinstance(result, torch.Tensor):
        return {"output": result}
    named = result.items() if isinstance(result, Mapping) else ((f"output {n}", x) for n, x in enumerate(result))
    return {
        str(name): value
        for name, value in named
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0
    }


@torch.inference_mode()
def embeddings(
    model: nn.Module, sentences: Sequence[Mapping[str, torch.Tensor]], progress: Callable[[int], None] | None = None
) -> torch.Tensor:
    """Return the means of the last hidden states over the tokens of each sentence, of length 1, float32 [N, H].

    Raises SqueezeError if the model returns no last hidden states.
    """
    rows = []
    for batch in sentences:
        found = outputs_of(model, batch)
        if "last_hidden_state" not in found:
            raise SqueezeError(
                f"{type(model).__name__} returns no last hidden states, the mean of which is an embedding"
            )
        hidden = found["last_hidden_state"].float()
        mask = batch["attention_mask"][..., None].to(hidden) if "attention_mask" in batch else torch.ones_like(hidden)
        rows.append(nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1).clamp(min=1), dim=-1).cpu())
        if progress:
            progress(len(hidden))
    return torch.cat(rows)


def retrieval_agreement(found: torch.Tensor, expected: torch.Tensor, count: int = 10) -> float:
    """Return the share of each row's `count` nearest other rows by `expected` that are so by `found` as well.

    Args:
        found: embeddings of length 1, [N, H].
        expected: the original's, [N, H].
        count: neighbours of a row; at most N - 1.
    """
    count = min(count, len(expected) - 1)
    if count < 1:
        raise SqueezeError(f"expected at least 2 passages to retrieve, got {len(expected)}")
    shared = total = 0
    for rows in torch.arange(len(expected)).split(256):
        ours, theirs = (_nearest(values, rows, count) for values in (found, expected))
        shared += int((ours[:, :, None] == theirs[:, None, :]).sum())
        total += ours.numel()
    return shared / total


def _nearest(values: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    products = values[rows] @ values.T
    products[torch.arange(len(rows)), rows] = -torch.inf
    return products.topk(count).indices
