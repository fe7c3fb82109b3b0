"""llama.cpp's importance matrix: of each input of each matrix the sum of squares over a calibration, in a GGUF file.

llama-quantize takes it with --imatrix. What the file holds is said by llama.cpp's tools/imatrix.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.forward import summed_squares
from squeeze.engine.pipeline import Progress
from squeeze.integrations.gguf.export import Export, new_file
from squeeze.options import read_options
from squeeze.quant.sources import floats
from squeeze.recipes.gguf.quantize import check_file
from squeeze.recipes.options import Common
from squeeze.recipes.run import tokens_of
from squeeze.recipes.tokens import calibration_name
from squeeze.system.storage import local_path

__all__ = ["imatrix"]


def imatrix(
    source: Path | str,
    out: Path | str,
    *,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
    **options: Any,
) -> int:
    """Write the importance matrix of a Hugging Face folder as the file `out`; returns how many of the model's tensors
    it speaks of. options: the fields of options.Common that say what the calibration is.

    Raises ModelError where llama.cpp cannot run the model, SqueezeError where `out` is in the way, or the calibration
    is too short.
    """
    source, out, common = local_path(source), local_path(out), read_options(Common, options)
    check_file(out, overwrite)
    checkpoint = floats(Checkpoint.open(source))
    export = Export.of(checkpoint)
    tokens = tokens_of(source, common, device)
    entries = _entries(export, summed_squares(checkpoint, tokens, device, progress))
    with new_file(out, export.architecture, overwrite) as writer:
        writer.add_type("imatrix")
        writer.add_array("imatrix.datasets", [calibration_name(common.calibration)])
        writer.add_uint32("imatrix.chunk_count", len(tokens))
        writer.add_uint32("imatrix.chunk_size", tokens.shape[1])
        for name, (squares, counts) in entries.items():
            writer.add_tensor(f"{name}.in_sum2", squares)
            writer.add_tensor(f"{name}.counts", counts)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return len(entries)


def _entries(export: Export, sums: Mapping[str, tuple[torch.Tensor, int]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By the file's name of a tensor: sums float32 [E, I] and numbers of tokens float32 [E, 1], E of experts or 1. What
    no token reaches has zeros, which llama.cpp takes for inputs that are all alike."""
    found = {}
    for name, sources in export.named.items():
        modules = [source.removesuffix(".weight") for source in sources]
        known = {module: sums[module] for module in modules if module in sums}
        if not known:
            continue
        unreached = torch.zeros_like(next(iter(known.values()))[0]), 0
        parts = [known.get(module, unreached) for module in modules]
        counts = np.array([[count] for _, count in parts], np.float32)
        found[name] = torch.stack([squares for squares, _ in parts]).numpy(), counts
    return found
