"""A model's folder in any form that squeeze or transformers stores weights in, as a model that runs."""

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.pretrained import first_line, quiet
from squeeze.errors import FormatError, ModelError
from squeeze.integrations.forms import FORMS
from squeeze.packing.folder import MANIFEST, METHOD
from squeeze.system.json_object import read_object

__all__ = ["load_model"]


def load_model(folder: Path | str, dtype: torch.dtype | None = None, device: str = "cpu") -> nn.Module:
    """A causal language model by transformers, ready to run. dtype: None for float32 on a CPU, else the folder's own.

    Folders of GPTQ, and of compressed-tensors where that is not installed, are read by our own code. Raises ModelError
    where transformers cannot run the model.
    """
    method = _method_of(Path(folder))
    quiet()
    # transformers takes seconds to import: only once a model is loaded
    from transformers import AutoModelForCausalLM

    from squeeze.integrations import loading, quantised, transformers  # noqa: F401  the last registers packed folders

    loading.register()
    kind = dtype or (torch.float32 if device == "cpu" else None)
    try:
        if method == "gptq" or (method == "compressed-tensors" and find_spec("compressed_tensors") is None):
            return quantised.load(folder, kind).to(device)
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=kind or "auto", local_files_only=True, trust_remote_code=False
        )
    except (ValueError, KeyError, OSError, RuntimeError, ImportError) as error:
        raise ModelError(f"{folder}: {first_line(error)}") from error
    return model.to(device).eval()


def _method_of(folder: Path) -> str | None:
    """How a folder's weights are stored, where its configuration says so.

    Raises ModelError where there is no folder, and for a packed one in a form that others read.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder")
    try:
        method = read_object(folder / "config.json")["quantization_config"]["quant_method"]
    except (OSError, FormatError, LookupError, TypeError):
        return None  # transformers says what is wrong with it
    if (folder / MANIFEST).is_file() and method not in (*FORMS, METHOD):
        raise ModelError(f"{folder}: is packed, and quantised as {method}: use `squeeze unpack` first")
    return str(method)
