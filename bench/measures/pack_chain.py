"""Bytes of the checkpoints of a training run, each packed as its difference from the one before, beside each alone.

A small Llama of bytes learns the text that Python ships, with AdamW in float32; its checkpoints are in bf16. The last
of a chain is verified, through all of it.
"""

import argparse
import math
import pydoc_data.topics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import squeeze
from bench.entry import Row

_LENGTH, _BATCH, _WARM_UP = 128, 8, 20


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for every in options.every:
        with tempfile.TemporaryDirectory() as folder:
            paths = list(checkpoints(Path(folder), options.checkpoints, every))
            settings = {"checkpoints": len(paths), "steps between": every, "max chain": options.max_chain}
            yield {**settings, **packed(paths, options.max_chain)}


def checkpoints(folder: Path, count: int, every: int) -> Iterator[Path]:
    """The weights of a run in bf16."""
    for step, model, _ in training(count, every):
        path = folder / f"checkpoint-{step:05}.safetensors"
        save_file({name: weights.bfloat16() for name, weights in model.state_dict().items()}, path)
        yield path


def training(count: int, every: int) -> Iterator[tuple[int, torch.nn.Module, torch.optim.Optimizer]]:
    """A run of count * every steps, its rate rising and then falling to nothing: after each `every` of them how many it
    were, the model and its optimizer."""
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(Path(pydoc_data.topics.__file__).read_bytes()), dtype=torch.uint8).long()
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=_LENGTH, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = count * every
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(step / _WARM_UP, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        starts = torch.randint(len(text) - _LENGTH, (_BATCH,))
        batch = torch.stack([text[start : start + _LENGTH] for start in starts.tolist()])
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        if step % every == 0:
            yield step, model, optimizer


def packed(paths: list[Path], max_chain: int) -> Row:
    """Sizes of all, alone and as a chain in which one is packed whole after so many differences, and of the second and
    the last one as a share of itself alone."""
    alone, chain = [], []
    folder = paths[0].parent / "chain"
    folder.mkdir()
    before: Path | None = None
    for path in paths:
        alone.append(squeeze.pack(path, path.with_suffix(".packed"), verify=False).coded)
        target = folder / path.name
        chain.append(squeeze.pack(path, target, base=before, max_chain=max_chain, verify=False).coded)
        before = target
    squeeze.verify(folder / paths[-1].name)
    raw = sum(path.stat().st_size for path in paths)
    return {
        "raw": raw, "alone": sum(alone), "chain": sum(chain), "second, of alone": round(chain[1] / alone[1], 4),
        "last, of alone": round(chain[-1] / alone[-1], 4),
    }  # fmt: skip
