"""Loading of a model from a folder in any stored form, packed or not, or from a GGUF file."""

from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.diffusion import DiffusionConfig
from squeeze.checkpoint.pretrained import (
    SAFE,
    check_size,
    class_of,
    empty_model,
    existing_folder,
    explained,
    load_config,
    load_tokenizer,
    quiet,
)
from squeeze.engine.expert_names import is_expert
from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.integrations import gguf
from squeeze.integrations.forms import FORMS
from squeeze.integrations.load_options import PRODUCTS, load_options
from squeeze.packing.chain import packed_files
from squeeze.packing.manifest import CONVERTED, MANIFEST, METHODS
from squeeze.prune.delta.stored import DeltaForm
from squeeze.system.limits import Limits

__all__ = ["load_model", "tokenizer_of"]


def load_model(
    folder: Path | str,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    resident: int | None = None,
    base: Path | str | None = None,
    product: str | None = None,
) -> nn.Module:
    """Load a model by transformers, ready to run, in the class that its config.json names.

    Folders of GPTQ, AWQ and bitsandbytes are read by squeeze, and so are those of compressed-tensors with experts or
    without the package. Packed folders in other tools' forms are restored to a scratch folder first.

    Args:
        folder: A folder, or a GGUF file, whose blocks are dequantised.
        dtype: Dtype of the model. None is float32 on a CPU; on GPUs, and for formats that transformers dequantises, it
            is the folder's own.
        device: Torch device.
        resident: Bytes of a packed folder's weights to decode once and keep.
        base: Base of a folder of `squeeze delta` or `pack --base`; by default it is searched next to the folder.
        product: "exact" or "fused" for a packed folder, as in load_options.

    Raises:
        ModelError: If transformers cannot run the model.
        FormatError: If files are damaged or contradict each other.
        SqueezeError: If resident or product is given and nothing stays coded, or the base is missing, wrong or not
            needed.
    """
    checkpoint = None if gguf.is_gguf(folder) else Checkpoint.open(existing_folder(folder))
    folder, method = Path(folder), None if checkpoint is None else _method_of(checkpoint)
    is_packed = (folder / MANIFEST).is_file()
    if is_packed and method not in (None, *FORMS, *METHODS):
        if resident is not None or product is not None:
            raise SqueezeError(
                f"{folder}: is packed and quantised as {method}, so all of it is decoded at once: "
                "leave out `resident` and `product`"
            )
        return _from_scratch(folder, base, dtype, device)
    if resident is not None and not is_packed:
        raise SqueezeError(f"{folder}: is not packed, so all of it is resident: leave out `resident`")
    if base is not None and method != DeltaForm.method and not is_packed:
        raise SqueezeError(f"{folder}: is no difference from a base, and needs none")
    if product is not None and not is_packed:
        raise SqueezeError(f"{folder}: is not packed, so no product decodes its weights: leave out `product`")
    if checkpoint is None:
        return gguf.load(folder, dtype or (torch.float32 if device == "cpu" else None)).to(device)
    quiet()
    # transformers takes seconds to import, so only when a model is loaded; the last import registers packed folders
    from squeeze.integrations import loading, quantised, transformers  # noqa: F401

    loading.register()  # forms that were added after that import, too
    dequantised = method is not None and method.removeprefix(f"{METHODS[0]}+") in CONVERTED
    kind = dtype or (torch.float32 if device == "cpu" and not dequantised else None)
    options = load_options(base=base, resident=resident or 0, product=product or PRODUCTS[0])
    with explained(folder), options:
        if method in ("gptq", "awq", "bitsandbytes") or (method == "compressed-tensors" and _read_here(checkpoint)):
            return quantised.load(folder, kind).to(device)
        return _loaded(checkpoint, kind).to(device).eval()


def _from_scratch(folder: Path, base: Path | str | None, dtype: torch.dtype | None, device: str) -> nn.Module:
    from squeeze.integrations.restoring import restored

    with restored(folder, base) as plain:
        return load_model(plain, dtype, device)


def tokenizer_of(folder: Path | str) -> Any:
    """Load the tokenizer of a folder or GGUF file; raises ModelError if it has no tokenizer."""
    return gguf.load_tokenizer(folder) if gguf.is_gguf(folder) else load_tokenizer(folder)


def _read_here(checkpoint: Checkpoint) -> bool:
    """Return whether squeeze reads a compressed-tensors folder: if the package is missing, or experts are quantised.

    transformers takes few schemes of experts, ignores a scale of NVFP4, and does not round inputs.
    """
    if find_spec("compressed_tensors") is None:
        return True
    return any(is_expert(name) and name.endswith(".weight_scale") for name in checkpoint.files)


def _loaded(checkpoint: Checkpoint, dtype: torch.dtype | None) -> nn.Module:
    folder, config = checkpoint.folder, load_config(checkpoint.folder)
    check_size(empty_model(config), checkpoint, _differences(folder))
    if isinstance(config, DiffusionConfig):
        return _diffusion(folder, config, dtype)
    loaded: Any = class_of(config).from_pretrained(
        folder, config=config, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True, **SAFE
    )
    model: nn.Module = loaded[0]
    if dtype is not None and hasattr(model, "ct_decompress_hook"):
        from squeeze.integrations import compressed_tensors

        compressed_tensors.expand(model, dtype)
    if missing := loaded[1]["missing_keys"]:
        raise FormatError(f"{folder}: the checkpoint has no tensor for {printable(repr(min(missing)))}")
    return model


def _diffusion(folder: Path, config: DiffusionConfig, dtype: torch.dtype | None) -> nn.Module:
    """Load a model of diffusers. Raises FormatError if a tensor is missing."""
    from squeeze.integrations import diffusers

    diffusers.register()
    loaded = config.kind.from_pretrained(
        folder, torch_dtype=dtype, use_safetensors=True, output_loading_info=True, **SAFE
    )
    model: nn.Module = loaded[0]
    if missing := loaded[1]["missing_keys"]:
        raise FormatError(f"{folder}: the checkpoint has no tensor for {printable(repr(min(missing)))}")
    return model


def _differences(folder: Path) -> int:
    """Count the weights that a packed folder stores as differences from a base."""
    records = (record for packed in packed_files(folder, Limits()) for record in packed.description.records)
    return sum(prod(record.shape) for record in records if record.coding.is_difference)


def _method_of(checkpoint: Checkpoint) -> str | None:
    """Return the `quant_method` in a folder's config.json, or None."""
    described = checkpoint.config.get("quantization_config")
    return printable(described.get("quant_method")) if described else None
