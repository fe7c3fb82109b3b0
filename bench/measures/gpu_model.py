"""A packed model of random weights on a GPU beside the same model in bf16: tokens a second one by one, and memory.

The model has the shapes of Llama-2-7B, and weights drawn from a normal distribution whose scale differs by row. It is
written as a checkpoint, packed, and each is loaded by transformers in a process of its own, as runtime.py does. Logits
and tokens must be equal.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

import squeeze
from bench.entry import Row
from bench.measures.runtime import Case, measured

_SHARD = 8  # blocks in a file


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if options.device != "cpu" and not torch.cuda.is_available():
        yield {"blocks": options.blocks, "width": options.width, "device": None, "status": "no GPU"}
        return
    with tempfile.TemporaryDirectory(dir=options.work) as name:
        folders = [Path(name, "model"), Path(name, "packed")]
        count = write(folders[0], options)
        start = time.perf_counter()
        squeeze.pack(*folders)
        seconds, found, outputs = time.perf_counter() - start, [], []
        for folder in folders:
            saved = Path(name, f"{folder.name}.pt")
            found.append(measured(Case(str(folder)), saved, options))
            outputs.append(torch.load(saved, weights_only=True))
    if not all(map(torch.equal, *outputs)):
        raise SystemExit("Error: the logits differ")
    dense, packed = found
    device = "cpu" if options.device == "cpu" else torch.cuda.get_device_name()
    yield {
        **{"blocks": options.blocks, "width": options.width, "parameters": count, "device": device},
        **{"status": "measured", "tokens": options.tokens, "pack, s": seconds},
        **{f"{way}, tokens/s": one["tokens_per_second"] for way, one in (("bf16", dense), ("packed", packed))},
        **{"x": packed["tokens_per_second"] / dense["tokens_per_second"]},
        **{f"{key}, share": packed[key] / dense[key] for key in ("weights", "peak")},
    }


def write(folder: Path, options: argparse.Namespace) -> int:
    """A checkpoint of Llama's shapes; how many weights it has."""
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
    each = sum(outputs * inputs for outputs, inputs in shapes.values())
    return options.blocks * each + 2 * vocabulary * width


def draw(shape: tuple[int, int], device: str) -> torch.Tensor:
    """bf16 weights."""
    scale = torch.exp(torch.randn(shape[0], 1, device=device) * 0.3) / shape[1] ** 0.5
    return (torch.randn(shape, device=device) * scale).bfloat16().cpu()
