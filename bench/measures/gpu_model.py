"""A packed model of random weights on a GPU beside the same model in bf16: tokens a second one by one, and memory.

The model has the shapes of Llama-2-7B, and weights drawn from a normal distribution whose scale differs by row. It is
written as a checkpoint and packed, and transformers loads one after the other. Logits and tokens must be equal.
"""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

import squeeze
import squeeze.integrations.transformers  # which loads packed folders
from bench.entries import gpus
from bench.entry import Row
from bench.shared import alone

_PROMPT = 64  # tokens
_SHARD = 8  # blocks in a file


def rows(options: argparse.Namespace) -> Iterator[Row]:
    on_gpu = options.device != "cpu" and torch.cuda.is_available()
    about = {"blocks": options.blocks, "width": options.width, "tokens": options.tokens}
    about |= {"device": torch.cuda.get_device_name() if on_gpu else "cpu" if options.device == "cpu" else None}
    return alone.row_of("gpu-model", about, measured, options)


def measured(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as temporary:
        folders = prepared(options.work or Path(temporary), options)
        dense, packed = (_measured(folder, options) for folder in folders)
    if not all(map(torch.equal, dense.outputs, packed.outputs)):
        raise SystemExit("Error: the logits differ")
    yield {
        **{"parameters": dense.weights, "status": gpus.MEASURED},
        **{f"{way}, tokens/s": one.speed for way, one in (("bf16", dense), ("packed", packed))},
        **{"x": packed.speed / dense.speed, "memory, share": packed.memory / dense.memory},
        **{"peak, share": packed.peak / dense.peak},
    }


def prepared(work: Path, options: argparse.Namespace) -> list[Path]:
    """The folders of the model and of the packed one, which are made where they are not there."""
    folders = [work / "model", work / "packed"]
    if not folders[0].exists():
        write(folders[0], options)
    if not folders[1].exists():
        squeeze.pack(*folders)
    return folders


@dataclass(frozen=True)
class _Found:
    """memory, peak: bytes on the device of the model, and the most while it generates; on the CPU 1."""

    outputs: list[torch.Tensor]
    speed: float
    weights: int
    memory: int
    peak: int


@torch.no_grad()
def _measured(folder: Path, options: argparse.Namespace) -> _Found:
    on_gpu, load = options.device != "cpu", transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype="auto", device_map=options.device).eval()
    memory = torch.cuda.memory_allocated() if on_gpu else 1
    ids = torch.arange(1, 1 + _PROMPT, device=options.device)[None]
    model.generate(ids, max_new_tokens=4, pad_token_id=0)  # compiles
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    text = model.generate(
        ids, max_new_tokens=options.tokens, min_new_tokens=options.tokens, do_sample=False, pad_token_id=0
    ).cpu()
    speed = options.tokens / (time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if on_gpu else 1
    weights = sum(parameter.numel() for parameter in model.parameters())
    found = _Found([text, model(ids).logits.cpu()], speed, weights, memory, peak)
    del model
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    return found


def write(folder: Path, options: argparse.Namespace) -> None:
    """A checkpoint of Llama's shapes."""
    folder.mkdir(parents=True)
    width, wide, vocabulary = options.width, options.width * 43 // 16, 32000
    config = {
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": width},
        **{"intermediate_size": wide, "num_attention_heads": width // 128, "num_key_value_heads": width // 128},
        **{"num_hidden_layers": options.blocks, "vocab_size": vocabulary, "tie_word_embeddings": False},
        **{"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "dtype": "bfloat16"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {f"self_attn.{name}_proj": (width, width) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (wide, width), "mlp.up_proj": (wide, width), "mlp.down_proj": (width, wide)}
    torch.manual_seed(1)
    ends = {name: draw((vocabulary, width), options.device) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    tensors = ends | {"model.norm.weight": torch.ones(width, dtype=torch.bfloat16)}
    places: dict[str, str] = {}
    for block in range(options.blocks):
        start = f"model.layers.{block}."
        tensors |= {f"{start}{name}.weight": draw(shape, options.device) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{start}{name}.weight"] = torch.ones(width, dtype=torch.bfloat16)
        if block % _SHARD == _SHARD - 1 or block == options.blocks - 1:
            file = f"model-{block // _SHARD:05}.safetensors"
            save_file(tensors, folder / file, metadata={"format": "pt"})
            places |= dict.fromkeys(tensors, file)
            tensors = {}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def draw(shape: tuple[int, int], device: str) -> torch.Tensor:
    """bf16 weights."""
    scale = torch.exp(torch.randn(shape[0], 1, device=device) * 0.3) / shape[1] ** 0.5
    return (torch.randn(shape, device=device) * scale).bfloat16().cpu()
