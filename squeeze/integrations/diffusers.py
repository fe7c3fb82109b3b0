"""Packed, quantised, pruned and factorised models in diffusers. After `import squeeze.integrations.diffusers`,

    FluxTransformer2DModel.from_pretrained("pipeline-packed", subfolder="transformer")
    DiffusionPipeline.from_pretrained("pipeline-packed")

load models that squeeze wrote, alone or in their pipeline, whose text encoders are loaded by transformers.

Large packed weights of linear layers and embeddings stay coded in memory and are decoded just before use. All others,
such as those of convolutions, are decoded once. Linear layers in a stored form become layers of that form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers.models import modeling_utils
from diffusers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from diffusers.quantizers.base import DiffusersQuantizer
from diffusers.quantizers.quantization_config import QuantizationConfigMixin
from torch import nn

import squeeze.integrations.transformers  # noqa: F401  for the text encoders
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.config_json import check_description
from squeeze.checkpoint.renaming import fit_of, renamed
from squeeze.checkpoint.safetensors import named
from squeeze.checkpoint.stored import StoredForm, dtype_named
from squeeze.engine.inputs import Samples, flat, parameters_of, texts_in
from squeeze.errors import FormatError, printable
from squeeze.integrations.bundled import later_members
from squeeze.integrations.forms import FORMS
from squeeze.integrations.load_options import current, load_options
from squeeze.integrations.loading import leaves_of, place_layers
from squeeze.integrations.packed import Payloads, is_packed, memory_of
from squeeze.integrations.restoring import within_folder
from squeeze.packing.manifest import METHOD
from squeeze.prune.delta.stored import DeltaForm

__all__ = ["SqueezeConfig", "SqueezeQuantizer", "load_options", "memory_of", "recorded", "register"]


class _Method(StrEnum):
    """A quantisation method's name with a `value`, which diffusers reads."""

    SQUEEZE = METHOD


class SqueezeConfig(QuantizationConfigMixin):
    """The `quantization_config` of a packed model of diffusers. Options of loading are those of `load_options`.

    Args:
        dtype: Dtype of most weights, if the caller names none.
    """

    def __init__(self, dtype: str | None = None, **ignored: Any):
        check_description(ignored)
        self.quant_method = _Method.SQUEEZE  # type: ignore[assignment]
        self.dtype = dtype

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields that diffusers prints; its own base class lacks this method."""
        return self.to_dict()


class SqueezeQuantizer(DiffusersQuantizer):
    """A quantizer that loads payloads as uint8 parameters, and then decodes them or leaves them coded."""

    use_keep_in_fp32_modules = True

    def __init__(self, quantization_config: SqueezeConfig, **kwargs: Any):
        super().__init__(quantization_config, **kwargs)
        self.config = quantization_config

    def update_torch_dtype(self, torch_dtype: torch.dtype | None) -> torch.dtype:
        self.dtype = torch_dtype or dtype_named(self.config.dtype, torch.get_default_dtype())
        return self.dtype

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: list[str]) -> list[str]:
        """Note the files that diffusers reads, which it passes only to this method."""
        files = [str(file) for file in checkpoint_files]
        self.payloads, self.members = Payloads(files, current()), later_members(files)
        self.payloads.take(self.members)
        return list(dict.fromkeys((*loaded_keys, *self.members)))

    def _process_model_before_weight_loading(
        self, model: nn.Module, keep_in_fp32_modules: list[str] | None = None, **kwargs: Any
    ) -> None:
        kept = {rf"(^|\.){re.escape(name)}(\.|$)": torch.float32 for name in keep_in_fp32_modules or ()}
        self.payloads.place(model, (), kept | {"": self.dtype})

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        self.payloads.fill(model, self.members)
        self.payloads.settle(model)
        return model

    @property
    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


class StoredConfig(QuantizationConfigMixin):
    """The `quantization_config` of a model in a stored form (docs/format.md)."""

    method: ClassVar[str]

    def __init__(self, **described: Any):
        check_description(described)
        self.quant_method = StrEnum("_Stored", {"FORM": self.method}).FORM  # type: ignore[attr-defined]
        self.described = {key: value for key, value in described.items() if key != "quant_method"}

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": str(self.quant_method), **self.described}

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields that diffusers prints."""
        return self.to_dict()


class StoredQuantizer(DiffusersQuantizer):
    """A quantizer that replaces linear layers by those of a stored form, and loads the form's tensors into them."""

    form: ClassVar[StoredForm]
    use_keep_in_fp32_modules = True
    payloads: Payloads | None = None

    def __init__(self, quantization_config: StoredConfig, **kwargs: Any):
        super().__init__(quantization_config, **kwargs)
        self.described = quantization_config.to_dict()

    def update_torch_dtype(self, torch_dtype: torch.dtype | None) -> torch.dtype:
        self.dtype = torch_dtype or dtype_named(self.described.get("dtype"), torch.get_default_dtype())
        return self.dtype

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: list[str]) -> list[str]:
        """Note the files that diffusers reads, which it passes only to this method."""
        self.files = [str(file) for file in checkpoint_files]
        self.members = later_members(self.files) if is_packed(self.files) else {}
        return list(dict.fromkeys((*loaded_keys, *self.members)))

    def _process_model_before_weight_loading(
        self, model: nn.Module, keep_in_fp32_modules: list[str] | None = None, **kwargs: Any
    ) -> None:
        self.form.check(self.described)
        infos: Mapping[str, Any]
        if is_packed(self.files):
            self.payloads = Payloads(self.files, current())
            self.payloads.take(self.members)
            infos = {name: stored.record for name, stored in self.payloads.stored.items()}
        else:
            infos = {tensor.name: tensor for name in self.files for tensor in tensorfile.read(Path(name)).tensors}
        self.leaves = place_whole(self.form, model, infos, self.files[0])
        if self.payloads:
            kept = {rf"(^|\.){re.escape(name)}(\.|$)": torch.float32 for name in keep_in_fp32_modules or ()}
            own = {rf"^{re.escape(name)}$": dtype for name, dtype in self.leaves.items() if dtype.is_floating_point}
            self.payloads.place(model, (), own | kept | {"": self.dtype})

    def check_if_quantized_param(
        self, model: nn.Module, param_value: Any, param_name: str, *args: Any, **kwargs: Any
    ) -> bool:
        return not self.payloads and param_name in self.leaves

    def create_quantized_param(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]  # it returns nothing
        """Put a stored tensor into its layer in the dtype that the layer has for it, without a detour by another."""
        model, _, name, device, state, *_ = args
        path, _, leaf = name.rpartition(".")
        owner, stored = model.get_submodule(path), state[name].to(device, self.leaves[name])
        if leaf in owner._buffers:
            owner._buffers[leaf] = stored
        else:
            owner._parameters[leaf] = nn.Parameter(stored, requires_grad=False)

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        self.form.settle(model)
        if self.payloads:
            self.payloads.fill(model, self.members)
            self.payloads.settle(model)
        return model.requires_grad_(False)

    @property
    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


def place_whole(
    form: StoredForm, model: nn.Module, infos: Mapping[str, Any], folder: str | Path
) -> dict[str, torch.dtype]:
    """Replace the layers of a model by those of a form, and return the dtype of each stored tensor in its layer.

    Args:
        form: The stored form.
        model: The model, on the meta device.
        infos: All tensors of the checkpoint by name.
        folder: Its name in errors.

    Raises:
        FormatError: If a tensor of the model is missing, or a stored one has no place.
    """
    leaves = leaves_of(form, infos)
    place_layers(form, model, leaves)
    fit, stored = fit_of(model, renamed(model, infos)), [f"{name}.{leaf}" for name in leaves for leaf in leaves[name]]
    if unclaimed := fit.unclaimed.intersection(stored):
        raise FormatError(f"{folder}: {type(model).__name__} has no place for {named(min(unclaimed))}")
    if fit.missing:
        raise FormatError(f"{folder}: the checkpoint has no tensor for {printable(repr(min(fit.missing)))}")
    held = model.state_dict()
    return {name: held[name].dtype for name in stored}


def recorded(model: nn.Module, run: Callable[[], object], most: int = 64) -> Samples:
    """Return inputs that a model gets while a pipeline runs, as a calibration set. Texts among them are left out, and
    the report of what is calibrated names them.

        samples = recorded(pipeline.transformer, lambda: pipeline("a red fox", num_inference_steps=8))
        squeeze.quantize("pipeline/transformer", out="transformer-4bit", calibration=samples)

    Args:
        model: The pipeline's transformer or U-Net.
        run: Function that runs the pipeline, once or more often.
        most: Most samples, spread evenly over the calls.

    Raises:
        SqueezeError: If the model is not called, or with inputs of different shapes.
    """
    calls: list[Mapping[str, Any]] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = [name for name in parameters_of(model) if name != "self"]  # the first is the module's own
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        copies = {name: value.detach().to("cpu", copy=True) for name, value in flat(given)}
        calls.append({**copies, **dict.fromkeys(texts_in(given), "")})

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            run()
    finally:
        handle.remove()
    step = max(1, -(-len(calls) // most))
    return Samples.of(calls[::step])


def register() -> None:
    """Register a quantizer in diffusers for every form in FORMS that it can load and that is not registered yet."""
    for form in FORMS.values():
        if form.method not in AUTO_QUANTIZER_MAPPING and not isinstance(form, DeltaForm):
            config: Any = type("StoredConfig", (StoredConfig,), {"method": form.method})
            quantizer: Any = type("StoredQuantizer", (StoredQuantizer,), {"form": form})
            AUTO_QUANTIZATION_CONFIG_MAPPING[form.method] = config
            AUTO_QUANTIZER_MAPPING[form.method] = quantizer


_shards = modeling_utils._get_checkpoint_shard_files  # type: ignore[attr-defined]
modeling_utils._get_checkpoint_shard_files = within_folder(_shards)  # type: ignore[attr-defined]
AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = SqueezeConfig
AUTO_QUANTIZER_MAPPING[METHOD] = SqueezeQuantizer
register()
