"""A mixture of experts of random weights in bf16: dense, packed, and packed with half of it resident. See runtime.py.

Its shape is that of Qwen3-MoE made small. Every token reaches `--reached` of the experts of a layer; the prompt reaches
all of them.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers

import squeeze
from bench.entry import Row
from bench.measures.runtime import Case, compared


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        model, packed = Path(name, "model"), Path(name, "packed")
        size = save(model, options)
        squeeze.pack(model, packed, threads=2)
        cases = {"original": Case(str(model)), "packed": Case(str(packed))}
        cases["packed, half resident"] = Case(str(packed), size // 2)
        for row in compared(cases, options):
            yield {"experts": options.experts, "reached": options.reached, **row}


def save(folder: Path, options: argparse.Namespace) -> int:
    """Write the model; its bytes."""
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        moe_intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=options.experts,
        num_experts_per_tok=options.reached,
    )
    model = transformers.Qwen3MoeForCausalLM(config).bfloat16()
    model.save_pretrained(folder)
    return sum(parameter.nbytes for parameter in model.parameters())
