"""llama.cpp's importance matrix: the sum of squares of each input of each matrix over a calibration set, as GGUF.

llama-quantize takes the file with --imatrix; tools/imatrix of llama.cpp defines its contents.
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
    """Write the importance matrix of a model's folder, and return the number of tensors that it covers.

    Args:
        source: Hugging Face folder.
        out: GGUF file to write.
        overwrite: Whether to replace an existing file.
        device: Torch device.
        progress: Called with what is done and what is left.
        options: Fields of options.Common that describe the calibration.

    Raises:
        ModelError: If llama.cpp cannot run the model.
        SqueezeError: If `out` exists, or the calibration is too short.
    """
    source, out, common = local_path(source), local_path(out), read_options(Common, options)
    check_file(out, overwrite)
    checkpoint = floats(Checkpoint.open(source))
    export = Export.of(checkpoint)
    tokens = tokens_of(source, common, device)
    entries = _entries(export, summed_squares(checkpoint, tokens, device, progress))
    with new_file(out, export.architecture, overwrite) as writer:
        writer.add_type("imatrix")
        writer.add_array("imatrix.datasets", [calibration_name(common.calibration, source)])
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
    """Return sums of squares, float32 [E, I], and token counts, float32 [E, 1], by tensor name in the file.

    E is the number of experts, or 1. An expert that no token reaches has zeros, which llama.cpp treats as equal inputs.
    """
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
