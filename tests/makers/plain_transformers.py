"""Compute logits with transformers in a process without the loaders of squeeze."""

import contextlib
import io
import os
import warnings

__all__ = ["logits"]


def logits(folder: str, ids: list[list[int]]) -> tuple[list[list[list[float]]], list[str]]:
    """Return the logits [1, L, V] of token ids [1, L], and the names of missing or unexpected tensors."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with contextlib.redirect_stderr(io.StringIO()), torch.no_grad():  # bars of compressed-tensors
        loader = transformers.AutoModelForCausalLM
        model, info = loader.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        lost = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
        found = model.eval()(input_ids=torch.tensor(ids)).logits.float()
    return found.tolist(), sorted(map(str, lost))
