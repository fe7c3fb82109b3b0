"""Weights on grids as a student: which of a folder's matrices can be trained, how they open, and what is stored again.

It takes folders of every format in quant.formats.FORMATS, and sparse folders with codes. coded.py has the layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from squeeze.checkpoint.architectures import LAST_NORM
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import dense_model
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.renaming import model_modules, transposed
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.checkpoint.stored import Stored
from squeeze.engine.network import find_blocks, is_linear
from squeeze.errors import SqueezeError, printable
from squeeze.integrations.forms import open_stored
from squeeze.prune.sparse24 import METHOD as SPARSE, SparseFormat
from squeeze.quant.formats import read
from squeeze.quant.sources import READERS, floats
from squeeze.recipes.train.coded import CodedLinear, CodedWeight
from squeeze.recipes.train.student import Names, Opening, expanding, norms

__all__ = ["Grids", "InSizes"]

# Adam's rate for each nat lost, bytes of memory for each weight of the original, and Adam's rate by block.
_SCALES = 2e-3, 14.0, 4e-3
_CODES = 2e-3, 30.0, 4e-3
_LACKS = "has no matrix of codes whose scales can be trained"


@dataclass(frozen=True)
class Grids:
    """The matrices of a folder that are stored as codes on grids.

    Attributes:
        checkpoint: The folder.
        stored: Its weights.
        write: write(module, weight) returns the tensors of a weight by full name.
        places: The model's names of the trained modules, by the checkpoint's.
        turned: Modules whose dense weight is stored as [I, O].
        left: Modules stored as codes that are not trained, with the reason.
        base: The dense original, towards which codes move; None if they are fixed.
    """

    checkpoint: Checkpoint
    stored: Stored
    write: Callable[[str, CodedWeight], dict[str, torch.Tensor]]
    places: Mapping[str, str]
    turned: frozenset[str]
    left: Mapping[str, str]
    base: Checkpoint | None

    @classmethod
    def of(cls, folder: Path, base: Path, moves: bool) -> "Grids":
        """Open a folder.

        Args:
            folder: The quantised folder.
            base: The dense original.
            moves: Whether codes move.

        Raises:
            SqueezeError: The weights are not on grids, or the inputs of matrices are rounded.
            FormatError: Tensors are missing or inconsistent.
        """
        checkpoint = Checkpoint.open(folder)
        described = checkpoint.config.get("quantization_config") or {}
        method = str(described.get("quant_method") or "") if isinstance(described, dict) else ""
        if method != SPARSE and method not in READERS:
            kind = f"stored as {printable(method)}" if method else "dense"
            raise SqueezeError(
                f"{folder}: its weights are {kind}, without scales to train: expected a folder of quantize, or of "
                "prune with bits"
            )
        stored = open_stored(checkpoint)
        model = dense_model(folder)
        inside = tuple(f"{name}." for name in find_blocks(model))
        found = {
            source: name
            for source, name in model_modules(model, stored.modules).items()
            if name.startswith(inside) and is_linear(model.get_submodule(name))
        }
        reasons, write = _sparse(checkpoint, stored) if method == SPARSE else _quantised(folder)
        places, left = {}, {}
        for module in stored.modules:
            reason = None if module in found else "it is merged with others, or outside the blocks"
            reason = reason or reasons(module) or (_unmoved(module, stored, checkpoint) if moves else None)
            if reason:
                left[module] = reason
            else:
                places[module] = found[module]
        turned = frozenset(transposed(model, stored.modules))
        return cls(checkpoint, stored, write, places, turned, left, floats(Checkpoint.open(base)) if moves else None)

    def opening(self) -> Opening:
        """Return how the matrices are trained."""
        rate, nbytes, by_block = _SCALES if self.base is None else _CODES
        return Opening(None, self.open, self.close, _LACKS, rate, nbytes, self.places, self.dense, by_block)

    def dense(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the folder with its weights as floats."""
        if (checkpoint.config.get("quantization_config") or {}).get("quant_method") != SPARSE:
            return floats(checkpoint)
        return expanding(checkpoint, self.stored.modules, self.stored.weight, self.turned)

    def weight(self, module: str) -> CodedWeight:
        """Return the stored weight of a module."""
        names = [f"{module}.{leaf}" for leaf in self.stored.modules[module]]
        weight = self.stored.weight(module, self.checkpoint.load(names, strict=False))
        assert isinstance(weight, (QuantizedTensor, SparseTensor))
        return weight

    def open(self, model: nn.Module, names: Names) -> dict[str, nn.Parameter]:
        """Replace the layers of a block or model by trainable ones, and return their parameters and the norms."""
        trained: dict[str, nn.Parameter] = {}
        for name, module in list(model.named_modules()):
            source = names(name)
            if source not in self.places:
                continue
            bias = getattr(module, "bias", None)
            layer = CodedLinear(self.weight(source), bias, self._original(source), source)
            device = next((tensor.device for tensor in module.state_dict().values()), torch.device("cpu"))
            model.set_submodule(name, layer.to(device))
            trained |= {f"{name}.{leaf}": value for leaf, value in layer.named_parameters()}
        for name in norms(model):
            module, _, leaf = name.rpartition(".")
            if leaf == "weight" and names(module) != LAST_NORM:
                norm = model.get_submodule(module)
                register_parametrization(norm, leaf, InSizes(norm.get_parameter(leaf)))
        return trained | norms(model)

    def close(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """Return the stored tensors of trained layers, their biases, and the norms, by their names in the model."""
        values: dict[str, torch.Tensor] = dict(norms(model))
        for name, layer in model.named_modules():
            if is_parametrized(layer, "weight"):
                del values[f"{name}.parametrizations.weight.original"]
                values[f"{name}.weight"] = layer.weight  # type: ignore[assignment]
            if isinstance(layer, CodedLinear):
                tensors = self.write(layer.source, layer.trained_weight())
                values |= {f"{name}.{full.rpartition('.')[2]}": tensor for full, tensor in tensors.items()}
                if layer.bias is not None:
                    values[f"{name}.bias"] = layer.bias
        return values

    def _original(self, module: str) -> torch.Tensor | None:
        if self.base is None:
            return None
        weight = self.base.load([f"{module}.weight"])[f"{module}.weight"]
        return weight.T if module in self.turned else weight


class InSizes(nn.Module):
    """The weight of a norm, as a trained number of times its typical size.

    A step of Adam changes every number by about the rate, and norms differ: SmolLM2's typical weight is 0.02 in the
    first block and 0.4 in the last.
    """

    size: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        size = weight.detach().float().square().mean().sqrt()
        self.register_buffer("size", torch.where(size > 0, size, torch.ones_like(size)), persistent=False)

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        """Return the weight."""
        return number * self.size

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the number for a weight."""
        return weight / self.size


def _quantised(
    folder: Path,
) -> tuple[Callable[[str], str | None], Callable[[str, CodedWeight], dict[str, torch.Tensor]]]:
    """Return why a module of a quantised folder cannot be trained, and its writer."""
    quantised = read(folder)
    form, spec = quantised.format, quantised.spec

    def reason(module: str) -> str | None:
        grid = spec.of(module)
        if grid.activations is not None:
            raise SqueezeError(
                f"{folder}: the inputs of {printable(module)} are rounded ({grid.activations}), which training does "
                "not imitate: quantize without a scheme of activations"
            )
        if grid.rows != 1:
            return "its rows share scales"
        return _unscaled(weight := quantised.weight(module)) or (
            "its groups are scattered" if weight.group_size != grid.inputs(weight.shape[1]) else None
        )

    def write(module: str, weight: CodedWeight) -> dict[str, torch.Tensor]:
        assert isinstance(weight, QuantizedTensor)
        return form.tensors(module, weight, weight.scales.dtype, spec.of(module))

    return reason, write


def _sparse(
    checkpoint: Checkpoint, stored: Stored
) -> tuple[Callable[[str], str | None], Callable[[str, CodedWeight], dict[str, torch.Tensor]]]:
    """Return why a module of a sparse folder cannot be trained, and its writer."""
    form = SparseFormat()

    def reason(module: str) -> str | None:
        if "scales" not in stored.modules[module]:
            return "its kept weights are floats"
        scales = checkpoint.info(f"{module}.scales").shape
        return "it is a sum of planes" if scales[0] != 1 else None

    def write(module: str, weight: CodedWeight) -> dict[str, torch.Tensor]:
        assert isinstance(weight, SparseTensor)
        return form.tensors(module, weight)

    return reason, write


def _unscaled(weight: QuantizedTensor) -> str | None:
    """Return why the scales of a weight cannot be trained, or None."""
    faults = {
        "its scales are powers of two": weight.scale_bits is not None and _powers(weight.scales),
        "its scales are quantised, too": weight.nested is not None,
        "it is a sum of planes": weight.scales.shape[0] != 1,
    }
    return next((fault for fault, present in faults.items() if present), None)


def _powers(scales: torch.Tensor) -> bool:
    return bool((torch.frexp(scales.float()).mantissa == 0.5).all())


def _unmoved(module: str, stored: Stored, checkpoint: Checkpoint) -> str | None:
    """Return why the codes of a module cannot move, or None."""
    leaves = stored.modules[module]
    return "its codes are of a codebook, without neighbours to move to" if "codebook" in leaves else None
