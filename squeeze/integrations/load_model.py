"""A model's folder in any form that squeeze or transformers stores weights in, or a GGUF file, as a model that runs."""

from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import (
    SAFE,
    check_size,
    empty_model,
    existing_folder,
    explained,
    load_config,
    load_tokenizer,
    quiet,
)
from squeeze.engine.experts import is_expert
from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.integrations import gguf
from squeeze.integrations.forms import FORMS
from squeeze.integrations.load_options import PRODUCTS, load_options
from squeeze.packing.chain import packed_files
from squeeze.packing.manifest import CONVERTED, MANIFEST, METHODS
from squeeze.prune.delta.stored import DeltaForm
from squeeze.quant.formats.compressed_tensors import METHOD as COMPRESSED
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
    """A causal language model by transformers, ready to run. folder: of a model, or a GGUF file, whose blocks are
    dequantised. dtype: None for float32 on a CPU, else, and for what transformers dequantises, the folder's own.
    resident: of a packed folder, bytes of weights that are decoded once and kept. base: of a folder of `squeeze delta`
    or `pack --base`; without, it is looked for beside it. product: of a packed folder, "exact" or "fused", as
    load_options has it.

    Folders of GPTQ, AWQ and bitsandbytes, and of compressed-tensors where there are experts or the package is missing,
    are read by our own code. Packed ones of others' forms are restored to a scratch folder first. Raises ModelError
    where transformers cannot run the model, FormatError where its files are damaged or contradict each other, and
    SqueezeError for a resident part or a product of a folder of which nothing stays coded, and for a base that is
    missing, another, or that none is the difference from.
    """
    checkpoint = None if gguf.is_gguf(folder) else Checkpoint.open(existing_folder(folder))
    folder, method = Path(folder), None if checkpoint is None else _method_of(checkpoint)
    is_packed = (folder / MANIFEST).is_file()
    if is_packed and method not in (None, *FORMS, *METHODS):
        if resident is not None or product is not None:
            raise SqueezeError(f"{folder}: is packed, and quantised as {method}, so that all of it is decoded at once")
        return _from_scratch(folder, base, dtype, device)
    if resident is not None and not is_packed:
        raise SqueezeError(f"{folder}: is not packed, so that all of it is resident")
    if base is not None and method != DeltaForm.method and not is_packed:
        raise SqueezeError(f"{folder}: is no difference from a base, and needs none")
    if product is not None and not is_packed:
        raise SqueezeError(f"{folder}: is not packed, so that no product decodes its weights")
    if checkpoint is None:
        return gguf.load(folder, dtype or (torch.float32 if device == "cpu" else None)).to(device)
    quiet()
    # transformers takes seconds to import: only once a model is loaded
    from squeeze.integrations import loading, quantised, transformers  # noqa: F401  the last registers packed folders

    loading.register()
    if method is not None and method.endswith(COMPRESSED) and find_spec("compressed_tensors"):
        from squeeze.integrations import compressed_tensors

        compressed_tensors.register()
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
    """The tokenizer of a model's folder, or GGUF file, by transformers. Raises ModelError where it has none."""
    return gguf.load_tokenizer(folder) if gguf.is_gguf(folder) else load_tokenizer(folder)


def _read_here(checkpoint: Checkpoint) -> bool:
    """Whether a folder of compressed-tensors is not left to transformers: where the package is missing, and where there
    are quantised experts. Of these transformers takes few schemes, forgets a scale of NVFP4, and rounds no inputs."""
    if find_spec("compressed_tensors") is None:
        return True
    return any(is_expert(name) and name.endswith(".weight_scale") for name in checkpoint.files)


def _loaded(checkpoint: Checkpoint, dtype: torch.dtype | None) -> nn.Module:
    from transformers import AutoModelForCausalLM

    folder, config = checkpoint.folder, load_config(checkpoint.folder)
    check_size(empty_model(config), checkpoint, _differences(folder))
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True, **SAFE
    )
    model: nn.Module = loaded[0]
    if dtype is not None and hasattr(model, "ct_decompress_hook"):
        from squeeze.integrations import compressed_tensors

        compressed_tensors.expand(model, dtype)
    if missing := loaded[1]["missing_keys"]:
        raise FormatError(f"{folder}: the checkpoint has no tensor for {printable(repr(min(missing)))}")
    return model


def _differences(folder: Path) -> int:
    """Weights that a packed folder holds as their differences from a base, which has as many."""
    records = (record for packed in packed_files(folder, Limits()) for record in packed.description.records)
    return sum(prod(record.shape) for record in records if record.coding.is_difference)


def _method_of(checkpoint: Checkpoint) -> str | None:
    """How a folder's weights are stored, where its configuration says so."""
    described = checkpoint.config.get("quantization_config")
    return printable(described.get("quant_method")) if described else None
