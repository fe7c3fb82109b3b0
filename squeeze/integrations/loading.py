"""What folders of squeeze's own forms share in transformers: linear layers (and GPT-2's Conv1D) become layers that hold
what is stored. What transformers holds otherwise, as experts merged into one tensor, is made dense while it is loaded.
Folders that are packed besides load, too, all but merged ones.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Tensor
from squeeze.errors import FormatError
from squeeze.integrations.packed import Payloads, is_packed
from squeeze.packing.container import Record
from squeeze.packing.load import torch_dtype

__all__ = ["Description", "Expand", "Leaves", "Loader", "by_module", "named"]

Leaves = dict[str, torch.Tensor]  # what is stored of one module, by the last part of its name


class Description(QuantizationConfigMixin):
    """A `quantization_config`: see docs/format.md."""

    method: ClassVar[str]

    def __init__(self, **described: Any):
        self.quant_method = self.method  # type: ignore[assignment]
        self.described = {key: value for key, value in described.items() if key != "quant_method"}
        self.dtype = described.get("dtype")

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": self.method, **self.described}


class Expand(ConversionOps):
    """Tensors of a stored weight, or of as many as are merged into one, to dense weights."""

    def __init__(self, hf_quantizer: HfQuantizer):
        self.hf_quantizer = hf_quantizer

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for pattern, tensors in input_dict.items():
            module, _, leaf = pattern.rpartition(".")
            found.setdefault(module, {})[leaf] = tensors if isinstance(tensors, list) else [tensors]
        dtype = kwargs["model"].dtype
        return {f"{module}.weight": self._dense(module, leaves, dtype) for module, leaves in found.items()}

    def _dense(self, module: str, leaves: dict[str, list[torch.Tensor]], dtype: torch.dtype) -> list[torch.Tensor]:
        """Raises FormatError where the weights merged here are stored in several ways: which, their order does not
        tell."""
        lengths = {len(tensors) for tensors in leaves.values()}
        if len(lengths) != 1 or (len(leaves) > 1 and "weight" in leaves):
            raise FormatError(f"{module}: some of its weights are stored in another way than the others")
        if "weight" in leaves:
            return leaves["weight"]
        each = ({leaf: tensors[i] for leaf, tensors in leaves.items()} for i in range(lengths.pop()))
        return [self.weight(module, tensors, dtype) for tensors in each]

    @abstractmethod
    def weight(self, module: str, leaves: Leaves, dtype: torch.dtype) -> torch.Tensor:
        """The dense weight that one module's tensors stand for."""


class Loader(HfQuantizer):  # type: ignore[no-untyped-call]
    """Gives every layer whose weight is stored in another form in the checkpoint the tensors of that form.

    Subclasses say `serialized_names`, {"weight": ["weight", leaves ..]}, and `expand`.
    """

    requires_calibration = True
    expand: type[Expand]
    payloads: Payloads | None = None

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype is None or not dtype.is_floating_point:
            named = getattr(torch, str(getattr(self.quantization_config, "dtype", None)), None)
            return named if isinstance(named, torch.dtype) else torch.get_default_dtype()
        return dtype

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        self.check(self.quantization_config.to_dict())
        files = checkpoint_files or []
        self.payloads = Payloads(files) if is_packed(files) else None
        stored = self._stored(files)
        self._replace(model, stored)
        if self.payloads:
            self.payloads.place(model)

    def _replace(self, model: nn.Module, stored: dict[str, Leaves]) -> None:
        """Put layers of the form into the places of linear ones. stored: tensors without values, by module."""
        prefix, taken = getattr(model, "base_model_prefix", ""), set()
        for name, module in list(model.named_modules()):
            spellings = (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}."))
            source = next((spelling for spelling in spellings if spelling in stored), None)
            if source is not None and isinstance(module, (nn.Linear, Conv1D)):
                taken.add(source)
                found = stored[source]
                weight, bias = module._parameters["weight"], module._parameters["bias"]
                assert weight is not None
                outputs, inputs = reversed(weight.shape) if isinstance(module, Conv1D) else weight.shape
                if kind := self.float_type(found, weight):
                    found = {leaf: x.to(kind) if x.is_floating_point() else x for leaf, x in found.items()}
                parent, _, leaf = name.rpartition(".")
                made = self.layer(name, inputs, outputs, found, None if bias is None else bias.data)
                setattr(model.get_submodule(parent), leaf, made)
        if self.payloads and (merged := stored.keys() - taken):
            raise FormatError(
                f"{min(merged)}: is packed, and merged with others in the model: use `squeeze unpack` first"
            )

    @abstractmethod
    def check(self, described: dict[str, Any]) -> None:
        """Raises FormatError for a description that this version cannot read."""

    @abstractmethod
    def modules_of(self, names: Iterable[str]) -> Mapping[str, Iterable[str]]:
        """By module: the leaves, among the tensors named, of each module that is stored in this form."""

    def float_type(self, stored: Leaves, weight: torch.Tensor) -> torch.dtype | None:
        """The type that stored floats are to have in the layer, None for their own."""
        return None

    @abstractmethod
    def layer(self, name: str, inputs: int, outputs: int, stored: Leaves, bias: torch.Tensor | None) -> nn.Module:
        """What takes a module's place. stored: tensors without values. Raises FormatError where what is stored is not
        for it."""

    def _stored(self, files: list[str]) -> dict[str, Leaves]:
        modules: dict[str, Leaves] = {}
        infos: Mapping[str, Tensor | Record]
        if self.payloads:
            infos = {name: record for name, (record, _) in self.payloads.records.items()}
        else:
            infos = {tensor.name: tensor for name in files for tensor in tensorfile.read(Path(name)).tensors}
        for module, leaves in self.modules_of(infos).items():
            for leaf in leaves:
                info = infos[f"{module}.{leaf}"]
                dtype = torch_dtype(info.dtype, f"{module}.{leaf}")
                modules.setdefault(module, {})[leaf] = torch.empty(info.shape, dtype=dtype, device="meta")
        return modules

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        if self.payloads:
            self.payloads.settle(model)
        model.requires_grad_(False)
        return model

    def get_load_operations(self) -> dict[str, type[ConversionOps]]:
        return {"dequantize": self.expand}

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


def named(module: str, leaves: Leaves) -> dict[str, torch.Tensor]:
    """The same by whole names."""
    return {f"{module}.{leaf}": tensor for leaf, tensor in leaves.items()}


def by_module(names: Iterable[str], leaves: Iterable[str], needed: str) -> dict[str, list[str]]:
    """Which of `leaves` there are below each module that has the leaf `needed`."""
    known = set(leaves)
    found: dict[str, list[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if leaf in known:
            found.setdefault(module, []).append(leaf)
    return {module: there for module, there in found.items() if needed in there}
