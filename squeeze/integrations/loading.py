"""Loaders of all stored forms in transformers: linear layers (and GPT-2's Conv1D) become layers of the stored form.

Weights that transformers merges, such as experts, are expanded to dense ones while they are loaded. Packed folders in a
form load as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import (
    AUTO_QUANTIZER_MAPPING,
    AutoQuantizationConfig,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.config_json import check_description, guarded, unguarded
from squeeze.checkpoint.renaming import fit_of, model_modules, renamed
from squeeze.checkpoint.safetensors import Tensor, named
from squeeze.checkpoint.stored import Leaves, StoredForm, dtype_named, expanded
from squeeze.errors import FormatError, printable
from squeeze.integrations.conversions import converters
from squeeze.integrations.forms import FORMS
from squeeze.integrations.load_options import current
from squeeze.integrations.packed import Payloads, is_packed
from squeeze.packing.record import Record
from squeeze.packing.weights import torch_dtype
from squeeze.prune.delta.base import BaseWeights, is_transposed
from squeeze.prune.delta.stored import DeltaForm, DeltaLinear

__all__ = ["Description", "Loader", "leaves_of", "place_layers", "register"]

_THEIRS = "from_dict_before_squeeze"


class Description(QuantizationConfigMixin):
    """A `quantization_config` of a stored form (docs/format.md)."""

    method: ClassVar[str]

    def __init__(self, **described: Any):
        self.quant_method = self.method  # type: ignore[assignment]
        check_description(described)
        self.described = {key: value for key, value in described.items() if key != "quant_method"}
        self.dtype = described.get("dtype")

    def to_dict(self) -> dict[str, Any]:
        return guarded({"quant_method": self.method, **self.described})


class Expand(ConversionOps):
    """A conversion that expands the stored tensors of one weight, or of several that are merged, to dense weights."""

    def __init__(self, hf_quantizer: HfQuantizer):
        assert isinstance(hf_quantizer, Loader)
        self.form = hf_quantizer.form

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        by_module: dict[str, dict[str, Any]] = {}
        for pattern, tensors in input_dict.items():
            module, _, leaf = pattern.rpartition(".")
            by_module.setdefault(module, {})[leaf] = tensors if isinstance(tensors, list) else [tensors]
        dtype = kwargs["model"].dtype
        return {f"{module}.weight": self._dense(module, leaves, dtype) for module, leaves in by_module.items()}

    def _dense(self, module: str, leaves: dict[str, list[torch.Tensor]], dtype: torch.dtype) -> list[torch.Tensor]:
        """Return the dense weights of a module.

        Raises FormatError if the merged weights are stored in different ways, since their order does not tell which.
        """
        lengths = {len(tensors) for tensors in leaves.values()}
        if len(lengths) != 1 or (len(leaves) > 1 and "weight" in leaves):
            raise FormatError(f"{module}: some of its weights are stored in another way than the others")
        if "weight" in leaves:
            return leaves["weight"]
        stored_weights = ({leaf: tensors[i] for leaf, tensors in leaves.items()} for i in range(lengths.pop()))
        return [expanded(module, self.form.weight(module, tensors), dtype) for tensors in stored_weights]


class Loader(HfQuantizer):  # type: ignore[no-untyped-call]
    """A quantizer that replaces layers by those of a stored form, and loads the form's tensors into them."""

    requires_calibration = True
    takes_payloads = True
    form: ClassVar[StoredForm]
    payloads: Payloads | None = None
    names: Sequence[str] = ()
    folder: Path | None = None
    leaves: Mapping[str, Leaves]
    placed: Mapping[str, str]
    base: BaseWeights | None = None  # of differences

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype is None or not dtype.is_floating_point:
            return dtype_named(getattr(self.quantization_config, "dtype", None), torch.get_default_dtype())
        return dtype

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        self.form.check(self.quantization_config.to_dict())
        files = checkpoint_files or []
        if is_packed(files):
            self.payloads = Payloads(files, current(), self.base.base if self.base else None)
        self.open(model, self._infos(files), Path(files[0]).parent if files else None)

    def open(self, model: nn.Module, infos: Mapping[str, Tensor | Record], folder: Path | None) -> None:
        """Replace the layers of a model by those of the form.

        Args:
            model: The model, on the meta device.
            infos: All tensors of the checkpoint by name.
            folder: The checkpoint's folder, for errors.
        """
        self.names, self.folder = list(infos), folder
        self._replace(model, leaves_of(self.form, infos))

    def conversions(self, weight_conversions: list[Any], model: nn.Module) -> list[Any]:
        """Return transformers' conversions, with those that experts need which are stored one by one or in the form."""
        missing = converters(model, self.names, weight_conversions)
        return list(super().update_weight_conversions([*weight_conversions, *missing], model))  # type: ignore[no-untyped-call]

    def update_weight_conversions(self, weight_conversions: list[Any], model: nn.Module) -> list[Any]:
        conversions = self.conversions(weight_conversions, model)
        self._check_whole(model, conversions)
        if self.payloads:
            self.payloads.place(model, conversions)
        return conversions

    def _replace(self, model: nn.Module, leaves: Mapping[str, Leaves]) -> None:
        self.placed, self.leaves = place_layers(self.form, model, leaves), leaves

    def _check_whole(self, model: nn.Module, conversions: Sequence[Any]) -> None:
        """Raise FormatError if the model lacks a tensor, or has no place for one that is stored in the form."""
        fit = fit_of(model, renamed(model, self.names, conversions))
        leaves = [f"{module}.{leaf}" for module, leaves in self.leaves.items() for leaf in leaves]
        if unclaimed := fit.unclaimed.intersection(leaves):
            raise FormatError(f"{self.folder}: {type(model).__name__} has no place for {named(min(unclaimed))}")
        if fit.missing:
            raise FormatError(f"{self.folder}: the checkpoint has no tensor for {printable(repr(min(fit.missing)))}")

    def _infos(self, files: list[str]) -> Mapping[str, Tensor | Record]:
        if self.payloads:
            return {name: stored.record for name, stored in self.payloads.stored.items()}
        return {tensor.name: tensor for name in files for tensor in tensorfile.read(Path(name)).tensors}

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        self.form.settle(model)
        if self.payloads:
            self.payloads.settle(model)
        model.requires_grad_(False)
        return model

    def get_load_operations(self) -> dict[str, type[ConversionOps]]:
        return {"dequantize": Expand}

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


def leaves_of(form: StoredForm, infos: Mapping[str, Tensor | Record]) -> Mapping[str, Leaves]:
    """Return the tensors of each module in the form, without values.

    Args:
        form: The stored form.
        infos: All tensors of the checkpoint by name.
    """
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for module, leaves in form.modules_of(infos).items():
        for leaf in leaves:
            info = infos[f"{module}.{leaf}"]
            dtype = torch_dtype(info.dtype, f"{module}.{leaf}")
            modules.setdefault(module, {})[leaf] = torch.empty(info.shape, dtype=dtype, device="meta")
    return modules


def place_layers(form: StoredForm, model: nn.Module, leaves_by_module: Mapping[str, Leaves]) -> dict[str, str]:
    """Replace layers of a model by those of the form, and return the names of those that were replaced.

    Heads and embeddings that are tied to a replaced embedding are replaced as well.

    Args:
        form: The stored form.
        model: The model, on the meta device.
        leaves_by_module: Tensors without values, by the checkpoint's module name.

    Returns:
        The model's module names by the checkpoint's.
    """
    placed = {}
    for source, name in model_modules(model, leaves_by_module).items():
        module, leaves = model.get_submodule(name), leaves_by_module[source]
        if isinstance(module, nn.Embedding) and (table := form.embedding(source, module, leaves)):
            model.set_submodule(name, table)
            placed[source] = name
            _tie(form, model, name)
            continue
        if not isinstance(module, (nn.Linear, Conv1D)):
            continue
        weight, bias = module._parameters["weight"], module._parameters["bias"]
        assert weight is not None
        outputs, inputs = reversed(weight.shape) if isinstance(module, Conv1D) else weight.shape
        if kind := form.float_type(leaves, weight):
            leaves = {leaf: x.to(kind) if x.is_floating_point() else x for leaf, x in leaves.items()}
        layer = form.layer(source, (outputs, inputs), leaves, None if bias is None else bias.data)
        model.set_submodule(name, layer)
        placed[source] = name
    _mark_filled(model, placed.values())
    return placed


def _tie(form: StoredForm, model: nn.Module, name: str) -> None:
    """Replace the layers that are tied to the weight of an embedding, which has been replaced."""
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    for target in [target for target, source in tied.items() if source == f"{name}.weight"]:
        layer = target.removesuffix(".weight")
        model.set_submodule(layer, form.tied(model.get_submodule(name), model.get_submodule(layer)))
        del tied[target]


def _mark_filled(model: nn.Module, placed: Iterable[str]) -> None:
    """Keep transformers from initialising modules whose children were replaced: some read a child's weight
    (GPT-BigCode, Mamba).

    Modules with buffers to compute are not marked.
    """
    for path in {name.rpartition(".")[0] for name in placed}:
        parent: Any = model.get_submodule(path)
        if not parent._non_persistent_buffers_set:
            parent._is_hf_initialized = True


class DeltaLoader(Loader):
    """A loader of differences from a base, whose weights all models on that base share."""

    def find_base(self, folder: Path) -> BaseWeights:
        """Open the base of the differences in a folder, once."""
        if self.base is None:
            described = self.quantization_config.to_dict()
            self.form.check(described)
            self.base = BaseWeights.of(folder, described, current().base)
        return self.base

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        self.find_base(Path((checkpoint_files or [""])[0]).parent)
        super()._process_model_before_weight_loading(model, checkpoint_files, **kwargs)

    def _replace(self, model: nn.Module, leaves: Mapping[str, Leaves]) -> None:
        super()._replace(model, leaves)
        layers = {source: model.get_submodule(name) for source, name in self.placed.items()}
        self.layers = {source: layer for source, layer in layers.items() if isinstance(layer, DeltaLinear)}

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        model = super()._process_model_after_weight_loading(model, **kwargs)
        assert self.base is not None
        described, loaded = self.quantization_config.to_dict(), cast(Any, model)
        for name, layer in self.layers.items():
            device, transposed = layer.get_buffer("sparse_values").device, is_transposed(name, described)
            layer.attach(self.base.shared(f"{name}.weight", loaded.dtype, device, transposed))
        loaded.squeeze_shared = list(self._unchanged(model, self.base))  # which stay as long as the model does
        return model

    def _unchanged(self, model: nn.Module, base: BaseWeights) -> Iterator[torch.Tensor]:
        """Make the other parameters that equal the base's share its memory, and yield the shared tensors."""
        parameters = dict(model.named_parameters())
        for source, place in renamed(model, base.names).items():
            parameter = parameters.get(place.target)
            if parameter is None or place.converter or base.shape(source) != tuple(parameter.shape):
                continue
            shared = base.shared(source, parameter.dtype, parameter.device)
            if torch.equal(shared, parameter):
                _replace_parameter(model, parameter, nn.Parameter(shared, requires_grad=False))
                yield shared


def _replace_parameter(model: nn.Module, old: nn.Parameter, new: nn.Parameter) -> None:
    """Replace a parameter in all modules that hold it, since weights may be tied."""
    for module in model.modules():
        for leaf, parameter in module._parameters.items():
            if parameter is old:
                module._parameters[leaf] = new


def register() -> None:
    """Register a loader in transformers for every form in FORMS that is not registered yet."""
    for form in FORMS.values():
        if form.method not in AUTO_QUANTIZER_MAPPING:
            config = type("StoredConfig", (Description,), {"method": form.method})
            names = {"weight": ["weight", *form.leaves]}
            kind = DeltaLoader if isinstance(form, DeltaForm) else Loader
            loader = type("StoredLoader", (kind,), {"form": form, "serialized_names": names})
            register_quantization_config(form.method)(config)
            register_quantizer(form.method)(loader)
    if not hasattr(AutoQuantizationConfig, _THEIRS):
        setattr(AutoQuantizationConfig, _THEIRS, AutoQuantizationConfig.from_dict)
        AutoQuantizationConfig.from_dict = _from_dict  # type: ignore[method-assign, assignment]


def _from_dict(described: dict[str, Any]) -> QuantizationConfigMixin:
    """Create a quantization config as AutoQuantizationConfig.from_dict does, of a description without its guard."""
    made: QuantizationConfigMixin = getattr(AutoQuantizationConfig, _THEIRS)(unguarded(described))
    return made
