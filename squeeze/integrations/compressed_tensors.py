"""Loader of compressed-tensors folders in transformers that also applies rotations, packed zero points and experts.

transformers' own loader ignores a `transform_config`, so that a rotated network would compute wrong outputs without an
error. It refuses packed zero points, because the package (0.20) allocates them unpacked. It merges the experts of few
schemes, ignores a scale of NVFP4, and does not round the inputs of experts. `register` replaces that loader.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from inspect import signature
from io import StringIO
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import nn
from transformers.core_model_loading import WeightConverter, WeightTransform
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer
from transformers.utils.quantization_config import CompressedTensorsConfig

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.config_json import guarded
from squeeze.checkpoint.quantized import words_for
from squeeze.engine.expert_names import is_expert
from squeeze.errors import FormatError
from squeeze.integrations import quantised
from squeeze.integrations.conversions import converters
from squeeze.integrations.restoring import restored, scratch_folder
from squeeze.kv.contract import CACHE
from squeeze.packing.base import file_of
from squeeze.packing.manifest import MANIFEST
from squeeze.packing.sources import SUFFIX
from squeeze.quant.formats.compressed_tensors import METHOD
from squeeze.quant.rotate import online
from squeeze.quant.sources import floats
from squeeze.system.limits import Limits

_CACHED = ("k_proj", "v_proj", "qkv_proj", "kv_b_proj")  # what attention layers have whose cache is quantised

__all__ = ["CompressedTensorsLoader", "Mixture", "TransformConfig", "expand", "pack_zero_points", "register"]


class TransformConfig(CompressedTensorsConfig):
    """A `quantization_config` that keeps its `transform_config`."""

    def __init__(self, *args: Any, transform_config: dict[str, Any] | None = None, **described: Any):
        super().__init__(*args, **described)  # type: ignore[no-untyped-call]
        self.transforms = transform_config

    def to_dict(self) -> dict[str, Any]:
        described = super().to_dict()
        return guarded({**described, "transform_config": self.transforms}) if self.transforms else described


TransformConfig.__name__ = (
    CompressedTensorsConfig.__name__
)  # by which transformers knows what a caller may pass besides


class CompressedTensorsLoader(CompressedTensorsHfQuantizer):
    """A loader that allocates packed zero points and adds rotations after loading. `Mixture` loads models with
    experts."""

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
        with redirect_stderr(StringIO()), _caches_by_name():  # bars of the package
            super()._process_model_before_weight_loading(model, **kwargs)  # type: ignore[no-untyped-call]
        config: Any = self.quantization_config
        scheme = config.quantization_config and config.quantization_config.kv_cache_scheme
        if scheme and not any("k_scale" in module._parameters for module in model.modules()):
            raise FormatError("compressed-tensors finds no attention layer whose KV cache it could quantise")
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
        _pass_caches(model)  # rotations of keys make caches of their own
        return model


def pack_zero_points(model: nn.Module) -> None:
    """Allocate zero points of packed integer weights as they are stored: int32 [ceil(O bits / 32), G], packed along
    outputs.
    """
    for module in model.modules():
        packed, points = (module._parameters.get(f"weight_{leaf}") for leaf in ("packed", "zero_point"))
        if packed is not None and points is not None:
            rows = words_for(len(packed), cast(Any, module).quantization_scheme.weights.num_bits)
            room = torch.empty(rows, points.shape[1], dtype=torch.int32, device=points.device)
            module.weight_zero_point = nn.Parameter(room, requires_grad=False)


def _leave_queries(model: nn.Module) -> None:
    """Keep queries unquantised in attention layers whose KV cache is quantised.

    The package would quantise them by the scheme of the cache, which has no scale for queries.
    """
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


@contextmanager
def _caches_by_name() -> Iterator[None]:
    """Let the package find attention layers by the argument for their cache.

    The package (0.20) does not know its name from transformers 5.24 on, and would leave all caches as they are.
    """
    from compressed_tensors.quantization.lifecycle import (  # type: ignore[import-untyped]
        apply,
        initialize,
    )

    name = "is_cached_attention_module"
    theirs = getattr(initialize, name, None)
    if theirs is None or CACHE == "past_key_values":
        yield
        return

    def takes_cache(module: nn.Module) -> bool:
        is_attention = initialize._is_attention_module(module) and any(hasattr(module, leaf) for leaf in _CACHED)
        return theirs(module) or (is_attention and CACHE in signature(module.forward).parameters)

    for place in (apply, initialize):
        setattr(place, name, takes_cache)
    try:
        yield
    finally:
        for place in (apply, initialize):
            setattr(place, name, theirs)


def _pass_caches(model: nn.Module) -> None:
    """Give attention layers the package's caches, which round and rotate keys, by the argument that they take.

    The package (0.20) does not know its name from transformers 5.24 on, so that its caches would never be used.
    """
    from compressed_tensors.modeling import KV_CACHE_ATTR  # type: ignore[import-untyped]

    def pass_cache(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        kwargs.pop("past_key_value", None)  # where the package has put it
        cache: Any = getattr(module, KV_CACHE_ATTR)
        if kwargs.get(CACHE) is not cache:
            cache.add_past_key_values(kwargs.get(CACHE))
            kwargs[CACHE] = cache
        return args, kwargs

    for module in model.modules():
        if hasattr(module, KV_CACHE_ATTR) and CACHE in signature(module.forward).parameters:
            module.register_forward_pre_hook(pass_cache, with_kwargs=True)


def expand(model: nn.Module, dtype: torch.dtype) -> None:
    """Decompress the weights of a model that `CompressedTensorsLoader` loaded, and cast the model to one dtype.

    The package would decompress them at the first forward pass, and fp4 weights always to bfloat16.
    """
    loader: Any = model.hf_quantizer
    with redirect_stderr(StringIO()):
        loader.compressor.decompress_model(model)
    nn.Module.to(model, dtype)  # transformers' own refuses


def register() -> None:
    """Register this loader in transformers for folders of compressed-tensors."""
    AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = TransformConfig
    AUTO_QUANTIZER_MAPPING[METHOD] = CompressedTensorsLoader


_SHARD = 1 << 30  # bytes of a scratch file


class Mixture:
    """A folder with quantised experts that is being loaded by way of dense weights in a scratch folder.

    transformers loads the dense files like those of any model. Then quantised.place replaces modules. `names` are those
    of the dense tensors.
    """

    def __init__(self, folder: Path) -> None:
        self._scratch = ExitStack()
        self._close = weakref.finalize(self, self._scratch.close)  # also where loading ends in an error
        packed = (folder / MANIFEST).is_file()
        self.folder = self._scratch.enter_context(restored(folder)) if packed else folder
        self.names: list[str] = []

    @classmethod
    def of(cls, files: Sequence[str]) -> Mixture | None:
        """Return a Mixture for the files that transformers is going to load, or None if they hold no quantised
        experts."""
        paths = (Path(file) for file in files if file.endswith(SUFFIX))
        tables = (opened[0].by_name for path in paths if (opened := file_of(path, "", Limits())))
        found = any(is_expert(name) and name.endswith(".weight_scale") for table in tables for name in table)
        return cls(Path(files[0]).parent) if found else None

    def dense(self) -> list[str]:
        """Write the weights to dense scratch files, and return their paths."""
        scratch = self._scratch.enter_context(scratch_folder())
        files: list[str] = []
        with torch.device("cpu"):  # transformers makes empty models meanwhile
            source = floats(Checkpoint.open(self.folder))
            self.names = list(source.files)
            for number, tensors in enumerate(_batches(source)):
                files.append(str(scratch / f"{number}.safetensors"))
                save_file(tensors, files[-1], {"format": "pt"})
        return files

    def converters(self, model: nn.Module, conversions: Sequence[WeightTransform]) -> list[WeightConverter]:
        """Return the converters of experts that transformers lacks for the dense files."""
        return converters(model, self.names, conversions)

    def place(self, model: nn.Module, *, dense: bool) -> None:
        """Replace the modules of a loaded model by quantised ones, unless it is to stay dense, and delete the scratch
        files.
        """
        if not dense:
            quantised.place(model, self.folder)
        self._close()


def _batches(source: Checkpoint) -> Iterator[dict[str, torch.Tensor]]:
    batch: dict[str, torch.Tensor] = {}
    for name in source.files:
        batch |= {name: tensor.contiguous() for name, tensor in source.load([name], strict=False).items()}
        if sum(tensor.nbytes for tensor in batch.values()) >= _SHARD:
            yield batch
            batch = {}
    if batch:
        yield batch
