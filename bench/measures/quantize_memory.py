"""Peak memory of quantising or pruning a checkpoint of random weights, beside twice its largest block as float32.

Writes a Llama checkpoint of random bf16 weights (4 GB with 44 blocks, which are those of TinyLlama) into WORK, and
works on it in a process of its own: with GPTQ, or rounded with bits that a budget allows each matrix, with hidden
states in files; or without calibration, rounded to nearest or pruned by magnitude. `held` is the most memory that was
no file's, sampled; `peak` the most with pages of files, which the system drops when memory is short.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench.entry import Row

CONFIG = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632},
    **{"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000},
    **{"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
}
RUN = """
import re, resource, sys, threading, time, torch
import squeeze
held = [0]
def watch():
    while True:
        held[0] = max(held[0], int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10)
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
torch.set_num_threads(int(sys.argv[3]))
tokens = torch.randint(0, 32000, (int(sys.argv[4]), 128), generator=torch.Generator().manual_seed(0))
started = time.perf_counter()
if sys.argv[7:] == ["rtn"]:
    squeeze.quantize(sys.argv[1], "rtn", out=sys.argv[2], overwrite=True)
elif sys.argv[7:] == ["magnitude"]:
    squeeze.prune(sys.argv[1], "magnitude", pattern="2:4", out=sys.argv[2], overwrite=True)
elif sys.argv[7:] == ["budget"]:
    squeeze.quantize(sys.argv[1], "rtn", calibration=tokens, out=sys.argv[2], overwrite=True,
                     target_bits=float(sys.argv[6]))
else:
    squeeze.quantize(sys.argv[1], squeeze.GPTQ(bits=4), calibration=tokens, out=sys.argv[2], overwrite=True,
                     correction=float(sys.argv[5]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, held[0], round(time.perf_counter() - started))
"""


def write(folder: Path, blocks: int) -> int:
    """Write the checkpoint; the weights of a block."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden, wide, keys = 2048, 5632, 256
    inner = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
    }
    inner |= {"self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden)}
    inner |= {"mlp.down_proj": (hidden, wide), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    outer = {
        "model.embed_tokens.weight": (32000, hidden),
        "lm_head.weight": (32000, hidden),
        "model.norm.weight": (hidden,),
    }
    places = {}

    def put(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
        tensors = {key: torch.randn(shape, dtype=torch.bfloat16) * 0.02 for key, shape in shapes.items()}
        save_file(tensors, folder / name)
        places.update(dict.fromkeys(tensors, name))

    for i in range(blocks):
        put(f"block-{i}.safetensors", {f"model.layers.{i}.{key}.weight": shape for key, shape in inner.items()})
    put("outer.safetensors", outer)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": blocks}))
    return sum(torch.Size(shape).numel() for shape in inner.values())


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.manual_seed(0)
    block = write(options.work / "random", options.blocks)
    folders = options.work / "random", options.work / "out"
    command = [sys.executable, "-c", RUN, *folders, options.threads, options.samples, options.correction]
    if options.target_bits and options.method != "gptq":
        raise SystemExit("Error: target bits are measured by a method of their own: leave --method out")
    method = "budget" if options.target_bits else options.method
    command += [options.target_bits or 0, method]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    peak, held, seconds = map(int, done.stdout.split())
    sizes = {"weights": block * options.blocks + 2 * 32000 * 2048, "block": 8 * block, "peak": peak, "held": held}
    samples = options.samples if method in ("gptq", "budget") else 0
    about = {"blocks": options.blocks, "samples": samples, "threads": options.threads}
    about |= {"target bits": options.target_bits, "method": method}
    yield {**about, **sizes, "above": peak - 8 * block, "seconds": seconds}
