"""Folders of compressed-tensors in transformers, with what its own loader leaves aside, and in one type.

It leaves a `transform_config` aside, so that a network whose weights wait for turned inputs would be wrong without a
word, and refuses packed zero points, for which the package (0.20) makes room as if they were not packed. `register`
puts a loader in its place that lets the package apply what is described.
"""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from typing import Any, cast

import torch
from torch import nn
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer
from transformers.utils.quantization_config import CompressedTensorsConfig

from squeeze.checkpoint.config_json import guarded
from squeeze.checkpoint.quantized import words_for
from squeeze.integrations.mixtures import Mixture
from squeeze.quant.formats.compressed_tensors import METHOD
from squeeze.quant.rotate import online

__all__ = ["TurnedConfig", "TurnedLoader", "expand", "pack_zero_points", "register"]


class TurnedConfig(CompressedTensorsConfig):
    """A `quantization_config` that keeps its `transform_config`."""

    def __init__(self, *args: Any, transform_config: dict[str, Any] | None = None, **described: Any):
        super().__init__(*args, **described)  # type: ignore[no-untyped-call]
        self.transforms = transform_config

    def to_dict(self) -> dict[str, Any]:
        described = super().to_dict()
        return guarded({**described, "transform_config": self.transforms}) if self.transforms else described


TurnedConfig.__name__ = CompressedTensorsConfig.__name__  # by which transformers knows what a caller may pass besides


class TurnedLoader(CompressedTensorsHfQuantizer):
    """Makes room for packed zero points, and adds the modules of transforms once weights are loaded; leaves mixtures of
    experts to mixtures.py."""

    mixture: Mixture | None = None

    def preprocess_model(self, model: Any, dtype: Any = None, **options: Any) -> None:
        self.mixture = Mixture.of(options.get("checkpoint_files") or [])
        self.takes_payloads = self.mixture is not None
        super().preprocess_model(model, dtype, **options)

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        if self.mixture:
            return [*weight_conversions, *self.mixture.converters(model, weight_conversions)]
        return list(super().update_weight_conversions(weight_conversions, model))  # type: ignore[no-untyped-call]

    def is_serializable(self) -> bool:
        return self.mixture is None and bool(super().is_serializable())

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        if self.mixture and checkpoint_files:
            checkpoint_files[:] = self.mixture.dense()
            return
        with redirect_stderr(StringIO()):  # bars of the package
            super()._process_model_before_weight_loading(model, **kwargs)  # type: ignore[no-untyped-call]
        pack_zero_points(model)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self.mixture:
            config: Any = self.quantization_config
            self.mixture.place(model, dense=config.dequantize)
            return model
        super()._process_model_after_weight_loading(model, **kwargs)  # which returned nothing before transformers 5.23
        from compressed_tensors.transform import (  # type: ignore[import-untyped]
            TransformFactory,
            TransformScheme,
        )

        config = self.quantization_config
        _leave_queries(model)
        for name, described in online({"transform_config": config.transforms}).items():
            scheme = TransformScheme.model_validate(described)
            TransformFactory.from_scheme(scheme, name=name).apply_to_model(model, use_tqdm=False)
        return model


def pack_zero_points(model: nn.Module) -> None:
    """Give matrices of packed integers room for zero points as the package stores them: int32 [ceil(O bits / 32), G],
    packed along the O outputs."""
    for module in model.modules():
        packed, points = (module._parameters.get(f"weight_{leaf}") for leaf in ("packed", "zero_point"))
        if packed is not None and points is not None:
            rows = words_for(len(packed), cast(Any, module).quantization_scheme.weights.num_bits)
            room = torch.empty(rows, points.shape[1], dtype=torch.int32, device=points.device)
            module.weight_zero_point = nn.Parameter(room, requires_grad=False)


def _leave_queries(model: nn.Module) -> None:
    """Let attentions whose cache is rounded, and which may turn queries besides, have these as they are: the package
    would round them by the scheme of the cache, which has no scale of theirs."""
    from compressed_tensors.modeling import (  # type: ignore[import-untyped]
        IMPL_ATTR,
        KV_CACHE_ATTR,
        QuantizedAttentionImpl,
    )
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    class PlainQueries(QuantizedAttentionImpl):  # type: ignore[misc]
        def forward(self, module: nn.Module, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return ALL_ATTENTION_FUNCTIONS[QuantizedAttentionImpl._original_impl](module, query, *args, **kwargs)

    for module in model.modules():
        if hasattr(module, KV_CACHE_ATTR) and not hasattr(module, IMPL_ATTR):
            module.register_module(IMPL_ATTR, PlainQueries(cast(Any, model).config))


def expand(model: nn.Module, dtype: torch.dtype) -> None:
    """Expand the weights of a model of `TurnedLoader`'s now, and give it one type. The package does so at the first
    run, and then fp4 to bfloat16, whatever the rest of the model has."""
    loader: Any = model.hf_quantizer
    with redirect_stderr(StringIO()):
        loader.compressor.decompress_model(model)
    nn.Module.to(model, dtype)  # transformers' own refuses


def register() -> None:
    """Let transformers load folders of compressed-tensors with their transforms."""
    AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = TurnedConfig
    AUTO_QUANTIZER_MAPPING[METHOD] = TurnedLoader
