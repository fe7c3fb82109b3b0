"""Other projects' kernels, as bench/shared/gpu_cases.py needs them; each is imported when it is asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from bench.shared.contest import Call


def marlin(x: torch.Tensor, dense: torch.Tensor, copies: int) -> Sequence[Call]:
    """vLLM's Marlin, with 4-bit weights in groups of 128. dense: [O, I]."""
    from vllm.model_executor.layers.quantization.utils import marlin_utils, marlin_utils_test
    from vllm.scalar_type import scalar_types

    kind = scalar_types.uint4b8
    _, weight, scales, *_ = marlin_utils_test.marlin_quantize(dense.T.contiguous(), kind, 128, False)
    empty = marlin_utils.marlin_make_empty_g_idx(x.device)
    workspace = marlin_utils.marlin_make_workspace_new(x.device)

    def call(weight: torch.Tensor, scales: torch.Tensor) -> Any:
        return marlin_utils.apply_gptq_marlin_linear(
            input=x,
            weight=weight,
            weight_scale=scales,
            weight_zp=empty,
            g_idx=empty,
            g_idx_sort_indices=empty,
            workspace=workspace,
            wtype=kind,
            output_size_per_partition=dense.shape[0],
            input_size_per_partition=dense.shape[1],
            is_k_full=True,
        )

    pairs = [(weight.clone(), scales.clone()) for _ in range(copies)]
    return [lambda pair=pair: call(*pair) for pair in pairs]


def bitsandbytes(x: torch.Tensor, dense: torch.Tensor, copies: int) -> Sequence[Call]:
    """NF4 in groups of 64, its default."""
    import bitsandbytes as bnb

    pairs = [bnb.functional.quantize_4bit(dense.contiguous(), quant_type="nf4") for _ in range(copies)]
    return [lambda q=q, state=state: bnb.matmul_4bit(x, q.t(), quant_state=state) for q, state in pairs]


def flash_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> Sequence[Call]:
    """A decoding step, whose keys and values it splits. query: [B, Hq, 1, D]; keys, values: [B, H, T, D]."""
    from flash_attn import flash_attn_with_kvcache

    q, k, v = (x.to(query.dtype).transpose(1, 2).contiguous() for x in (query, keys, values))
    return [lambda: flash_attn_with_kvcache(q, k, v, softmax_scale=scaling).transpose(1, 2)]


def nvcomp(values: torch.Tensor, copies: int) -> Sequence[Call]:
    """nvCOMP's ANS, over bytes. values: bf16."""
    from nvidia import nvcomp as library

    codec = library.Codec(algorithm="ANS")
    coded = [codec.encode(library.as_array(values.view(torch.uint8))) for _ in range(copies)]
    return [lambda one=one: torch.as_tensor(codec.decode(one), device="cuda").view(torch.bfloat16) for one in coded]


def dfloat11(x: torch.Tensor, dense: torch.Tensor, copies: int) -> Sequence[Call]:
    """DFloat11, which decodes as it multiplies. dense: [O, I]."""
    from dfloat11 import DFloat11Model, compress_model

    def model() -> torch.nn.Sequential:
        layers = [torch.nn.Linear(*dense.shape[::-1], bias=False, dtype=torch.bfloat16) for _ in range(copies)]
        return torch.nn.Sequential(*layers)

    original, names = model(), {r"\d+": []}
    for layer in original:
        layer.weight.data.copy_(dense)
    with tempfile.TemporaryDirectory() as folder:
        compress_model(
            model=original, pattern_dict=names, save_path=folder, save_single_file=True, check_correctness=False
        )  # which takes the weights away
        loaded = DFloat11Model.from_pretrained(folder, bfloat16_model=model(), device="cuda")
    return [lambda layer=layer: layer(x) for layer in loaded]
