"""The distance of a model's outputs from the original's, as reports hold it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from squeeze.errors import QualityError

__all__ = ["OutputQuality", "check_outputs"]


@dataclass(frozen=True)
class OutputQuality:
    """The distance of one output from the original's, over all samples.

    Attributes:
        name: of the output; `embedding` is the mean of the last hidden states.
        shape: of one sample's.
        error: relative error, ||y - x|| / ||x||.
        cosine: mean cosine of the vectors along the last axis; None if these have one number.
        kl_mean: mean KL(original || model) of logits in nats; None for other outputs.
        top1_agreement: share of logits whose largest is the same class; None for other outputs.
        psnr: peak signal-to-noise ratio in dB, the peak being the original's largest magnitude.
        samples: number of samples.
        agreement: share of the original's 10 nearest neighbours that are found; None for other outputs.
    """

    name: str
    shape: list[int]
    error: float
    cosine: float | None
    kl_mean: float | None
    top1_agreement: float | None
    psnr: float
    samples: int
    agreement: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        parts = [f"error {self.error:.4f}"]
        parts += [f"cosine {self.cosine:.4f}"] if self.cosine is not None else []
        parts += [f"KL {self.kl_mean:.4f} nats"] if self.kl_mean is not None else []
        parts += [f"same class {100 * self.top1_agreement:.1f} %"] if self.top1_agreement is not None else []
        parts += [f"same 10 neighbours {100 * self.agreement:.1f} %"] if self.agreement is not None else []
        return f"{', '.join(parts)} ({self.samples} samples)"


def check_outputs(
    target: str, outputs: Sequence[OutputQuality], max_kl: float | None = None, max_error: float | None = None
) -> None:
    """Raise QualityError if a distance of an output is above a limit.

    Args:
        target: name of the model in the error.
        outputs: distances of outputs.
        max_kl: largest mean KL divergence, nats.
        max_error: largest relative error.
    """
    for one in outputs:
        if max_error is not None and not one.error <= max_error:
            raise QualityError(f"{target}: the relative error of {one.name} is {one.error:.4f}, above {max_error:g}")
        if max_kl is not None and one.kl_mean is not None and not one.kl_mean <= max_kl:
            raise QualityError(f"{target}: the mean KL divergence of {one.name} is {one.kl_mean:.4f}, above {max_kl:g}")
