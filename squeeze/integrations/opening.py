"""A check, on the meta device, that a folder's loader accepts it, before the folder gets its name.

Only headers are read. Every stored tensor must have a place in the model, and every tensor of the model must be stored.
A module that stores its weight in another form must not need a dense one in transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.diffusion import is_diffusion
from squeeze.checkpoint.pretrained import dense_model, explained, quiet
from squeeze.checkpoint.renaming import Fit, Renamed, fit_of, model_modules, renamed
from squeeze.checkpoint.safetensors import named
from squeeze.engine.expert_names import is_expert
from squeeze.errors import ModelError, SqueezeError, printable
from squeeze.integrations.forms import FORMS, open_stored
from squeeze.packing.manifest import CONVERTED
from squeeze.quant.formats.compressed_tensors import METHOD as COMPRESSED
from squeeze.quant.sources import READERS, floats

__all__ = ["check_opens", "check_planned", "unopened"]

_HINT = "transformers does not load this architecture in compressed-tensors: use the format squeeze or dense"


def check_opens(written: Path, source: Checkpoint | None = None, target: Path | None = None) -> None:
    """Raise ModelError if the loader of a folder would not load it completely.

    Args:
        written: The new folder.
        source: The checkpoint that it was made of. Tensors that are missing or unused there may be so in the folder.
        target: Name of the folder in the error.
    """
    folder, checkpoint = target or written, Checkpoint.open(written)
    quiet()
    known, known_shapes = _faults_of(source) if source else (Fit(frozenset(), frozenset()), frozenset[str]())
    try:
        with explained("transformers"):
            model = dense_model(written)
            places, shapes = _opened(model, checkpoint)
            fit = fit_of(model, places)
    except SqueezeError as error:
        raise ModelError(f"{folder}: would not load: {error}; nothing was written") from None
    if unclaimed := sorted(fit.unclaimed - known.unclaimed):
        raise _unloadable(folder, f"{type(model).__name__} has no place for", unclaimed)
    if missing := sorted(fit.missing - known.missing):
        raise _unloadable(folder, f"{type(model).__name__} finds nothing for", missing)
    misshapen = _misshapen(model, places, shapes)
    if names := sorted(misshapen.keys() - known_shapes):
        differ = f"has shape {list(shapes[names[0]])}, and {type(model).__name__} has {list(misshapen[names[0]])}"
        raise ModelError(f"{folder}: would not load: {named(names[0])} {differ}; nothing was written")
    if wanted := wanted_weights(model):
        raise _unloadable(folder, "transformers wants a dense weight of", sorted(wanted))


def check_planned(checkpoint: Checkpoint, modules: Iterable[str], described: Mapping[str, Any], target: Path) -> None:
    """Raise ModelError if a planned compressed-tensors folder would not load, before hours of work.

    Args:
        checkpoint: The dense checkpoint.
        modules: Modules to quantise, by the checkpoint's names; no experts.
        described: The folder's `quantization_config`.
        target: Name of the folder in the error.
    """
    if not find_spec("compressed_tensors"):
        return
    quiet()
    known, _ = _faults_of(checkpoint)
    with explained(target):
        model = dense_model(checkpoint.folder)
        found = model_modules(model, modules)
        conversions = _placed_by_package(model, described)
    stored = {f"{source}.{leaf}" for source, name in found.items() for leaf in model.get_submodule(name).state_dict()}
    dense = checkpoint.files.keys() - {f"{source}.weight" for source in found}
    fit = fit_of(model, renamed(model, dense | stored, conversions))
    unconverted = [
        source for source, name in found.items() if "weight_scale" not in model.get_submodule(name).state_dict()
    ]
    if unclaimed := sorted((fit.unclaimed - known.unclaimed) | set(unconverted)):
        raise _unloadable(target, f"{type(model).__name__} has no place for", unclaimed, _HINT)
    if missing := sorted(fit.missing - known.missing):
        raise _unloadable(target, f"{type(model).__name__} finds nothing for", missing, _HINT)


def unopened(folder: Path, modules: Iterable[str]) -> set[str]:
    """Return the modules of a checkpoint that cannot be loaded without a dense weight, because transformers reads
    it."""
    model, modules = dense_model(folder), list(modules)
    found = model_modules(model, modules)
    for name in found.values():
        del model.get_submodule(name)._parameters["weight"]
    with explained(folder):
        wanted = wanted_weights(model)
    return {source for source, name in found.items() if name in wanted}


def wanted_weights(model: nn.Module) -> set[str]:
    """Return the modules that fail without a weight in `_init_weights`, which transformers runs after loading.

    Their weights are put back on the meta device.
    """
    names = {module: name for name, module in model.named_modules()}
    wanted: set[str] = set()
    for module, owner in _with_owner(model, model):
        while not getattr(module, "_is_hf_initialized", False):
            try:
                owner._init_weights(module)
            except AttributeError as error:
                lacking = error.obj
                if not isinstance(lacking, nn.Module) or error.name != "weight" or lacking not in names:
                    break  # not about a weight
                sizes = (getattr(lacking, key, 1) for key in ("out_features", "in_features"))
                lacking.weight = nn.Parameter(torch.empty(*sizes, device="meta"))
                wanted.add(names[lacking])
                continue
            except Exception:  # values decide, and there are none on the meta device
                break
            break
    return wanted


def _with_owner(module: nn.Module, owner: Any) -> Iterator[tuple[nn.Module, Any]]:
    """Yield modules from the leaves up, each with the transformers model that initialises it."""
    for child in module.children():
        yield from _with_owner(child, child if hasattr(child, "_init_weights") else owner)
    yield module, owner


def _faults_of(source: Checkpoint) -> tuple[Fit, frozenset[str]]:
    """Return how a source fits its own model, and which of its tensors have other shapes there.

    If the source does not open, no kept tensor counts as a fault.
    """
    try:
        with explained(source.folder):
            model = dense_model(source.folder)
            places, shapes = _opened(model, source)
            return fit_of(model, places), frozenset(_misshapen(model, places, shapes))
    except SqueezeError:
        return Fit(frozenset(source.files), frozenset()), frozenset(source.files)


def _misshapen(
    model: nn.Module, places: Mapping[str, Renamed], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the model's shape of each tensor whose shape differs from `shapes`, those that reach the model."""
    state = model.state_dict()
    claimed = {name: place.target for name, place in places.items() if place.claimed and not place.converter}
    wanted = {name: tuple(state[target].shape) for name, target in claimed.items() if name in shapes}
    return {name: shape for name, shape in wanted.items() if shapes[name] != shape}


def _opened(model: nn.Module, checkpoint: Checkpoint) -> tuple[dict[str, Renamed], Mapping[str, tuple[int, ...]]]:
    """Open a checkpoint as its loader does, and return where tensors go in the model and the shapes that headers
    tell."""
    from squeeze.integrations.conversions import converters

    described = checkpoint.config.get("quantization_config") or {}
    method = str(described.get("quant_method", ""))
    shapes = {name: checkpoint.info(name).shape for name in checkpoint.files}
    if is_diffusion(checkpoint.config):
        if method in FORMS:
            infos = {name: checkpoint.info(name) for name in checkpoint.files}
            _place_stored(FORMS[method], model, infos)
        return renamed(model, shapes), shapes
    if method in FORMS:
        return _opened_by_us(model, checkpoint, described), shapes
    if method == COMPRESSED and find_spec("compressed_tensors") and not _has_experts(shapes):
        return renamed(model, shapes, _placed_by_package(model, described)), shapes
    names: Iterable[str] = shapes
    if method in READERS and method not in CONVERTED:
        dense = floats(checkpoint)
        names = shapes = {name: dense.info(name).shape for name in dense.files}
    elif described and method not in CONVERTED:
        names = _dense_names(checkpoint)
    conversions = _conversions(model)
    return renamed(model, names, [*conversions, *converters(model, names, conversions)]), shapes


def _dense_names(checkpoint: Checkpoint) -> set[str]:
    """Return the names of a folder's tensors after `densify`, for a form that only squeeze reads."""
    modules = open_stored(checkpoint).modules
    leaves = {f"{module}.{leaf}" for module, stored in modules.items() for leaf in stored}
    return (checkpoint.files.keys() - leaves) | {f"{module}.weight" for module in modules}


def _opened_by_us(model: nn.Module, checkpoint: Checkpoint, described: Mapping[str, Any]) -> dict[str, Renamed]:
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, AutoQuantizationConfig

    from squeeze.integrations import loading

    loading.register()
    loader: Any = AUTO_QUANTIZER_MAPPING[str(described["quant_method"])]
    loader = loader(AutoQuantizationConfig.from_dict(dict(described)), pre_quantized=True)
    loader.open(model, {name: checkpoint.info(name) for name in checkpoint.files}, checkpoint.folder)
    return renamed(model, checkpoint.files, loader.conversions(_conversions(model), model))


def _place_stored(form: Any, model: nn.Module, infos: Mapping[str, Any]) -> None:
    """Replace the layers of a model by those of a stored form."""
    from squeeze.integrations.loading import leaves_of, place_layers  # transformers takes seconds to import

    place_layers(form, model, leaves_of(form, infos))


def _placed_by_package(model: nn.Module, described: Mapping[str, Any]) -> list[Any]:
    """Place the modules of transformers' own compressed-tensors loader, and return its conversions."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer
    from transformers.utils.quantization_config import CompressedTensorsConfig

    from squeeze.integrations.compressed_tensors import pack_zero_points

    config: Any = CompressedTensorsConfig.from_dict(dict(described))
    loader = CompressedTensorsHfQuantizer(config, pre_quantized=True)
    loader.validate_environment()
    with _silent():
        loader.preprocess_model(model, dtype=torch.get_default_dtype())  # type: ignore[arg-type]
    pack_zero_points(model)
    return list(get_model_conversion_mapping(model, hf_quantizer=loader))  # type: ignore[arg-type]


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress the progress bars of the package."""
    with redirect_stderr(StringIO()):
        yield


def _conversions(model: nn.Module) -> list[Any]:
    from transformers.conversion_mapping import get_model_conversion_mapping

    return list(get_model_conversion_mapping(model))  # type: ignore[arg-type]


def _has_experts(names: Iterable[str]) -> bool:
    return any(is_expert(name) and name.endswith(".weight_scale") for name in names)


def _unloadable(folder: Path, fault: str, names: list[str], what_next: str = "nothing was written") -> ModelError:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    which = ", ".join(printable(repr(name)) for name in names[:2]) + more
    return ModelError(f"{folder}: would not load: {fault} {which}; {what_next}")
