"""Run llama.cpp's quantizer and evaluate texts with llama.cpp, through llama-cpp-python."""

import ctypes
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from squeeze.lm.llamacpp_library import library, model_parameters

FILE_TYPES = {
    **{"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k": 11, "q4_k": 14, "q5_k": 16},
    **{"q6_k": 18, "iq4_nl": 25, "tq1_0": 36, "tq2_0": 37},
    **{"iq2_xxs": 19, "iq2_xs": 20, "iq3_xxs": 23, "iq3_s": 26, "iq2_s": 29, "iq4_xs": 30},
}  # llama.cpp's numbers of files whose matrices are of one type


def quantise(
    source: Path, target: Path, kind: str, outer: int, importance: Mapping[str, np.ndarray], threads: int
) -> None:
    """Write a GGUF file of floats with all matrices in one type, or in the type that llama.cpp uses instead.

    Args:
        source: GGUF file of floats
        target: new GGUF file
        kind: type of the matrices
        outer: number of the type of embedding and head
        importance: importance matrix, float32 [I] by tensor name; empty for rounding without
        threads: number of threads
    """
    llama = library()
    entry = llama.llama_model_imatrix_data
    kept = {name.encode(): np.ascontiguousarray(values, np.float32) for name, values in importance.items()}
    pointer = ctypes.POINTER(ctypes.c_float)
    entries = [entry(name, values.ctypes.data_as(pointer), values.size) for name, values in kept.items()]
    table = (entry * (len(entries) + 1))(*entries)  # the last one has no name
    options = llama.llama_model_quantize_default_params()
    options.nthread, options.ftype, options.pure = threads, FILE_TYPES[kind], True
    options.token_embedding_type = options.output_tensor_type = outer
    if entries:
        options.imatrix = table
    if llama.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(options)):
        sys.exit(f"Error: llama.cpp does not quantise {source.name} to {kind}")


def opened(model: Path, window: int, threads: int, **options: Any) -> Any:
    """Open a model as llama-cpp-python does, without AMX (see squeeze/lm/llamacpp_library.py)."""
    llama = library()
    chosen, low = model_parameters(llama), llama.llama_cpp
    default, low.llama_model_default_params = low.llama_model_default_params, lambda: chosen
    try:
        return llama.Llama(
            str(model), n_ctx=window, n_threads=threads, n_threads_batch=threads, verbose=False, **options
        )
    finally:
        low.llama_model_default_params = default


def losses(model: Path, tokens: torch.Tensor, windows: int, threads: int, window: int = 1024) -> np.ndarray:
    """Return the mean negative log-likelihood of each window's tokens except the first, in nats.

    Args:
        model: GGUF file
        tokens: token ids
        windows: number of windows
        threads: number of threads
    """
    llama = opened(model, window, threads, n_batch=window, logits_all=True)
    found = []
    for ids in torch.split(tokens, window)[:windows]:
        llama.reset()
        llama.eval(ids.tolist())
        logits = torch.from_numpy(llama.scores[: len(ids) - 1])
        found.append(float(torch.nn.functional.cross_entropy(logits, ids[1:])))
    llama.close()
    assert all(map(math.isfinite, found)), model
    return np.array(found)
