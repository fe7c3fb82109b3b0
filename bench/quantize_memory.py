"""Peak memory of quantising a checkpoint of two thousand million random weights, beside what it may take.

python bench/quantize_memory.py WORK [--blocks 44] [--samples 24]

Writes a Llama checkpoint of random bf16 weights (4 GB; blocks as TinyLlama has them) into WORK, quantises it with GPTQ
in a process of its own, and prints its peak resident memory, twice the largest block (as float32), and the difference.
Hidden states are in files.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

CONFIG = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632},
    **{"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000},
    **{"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
}
RUN = """
import resource, sys, time, torch
import squeeze
torch.set_num_threads(int(sys.argv[3]))
tokens = torch.randint(0, 32000, (int(sys.argv[4]), 128), generator=torch.Generator().manual_seed(0))
started = time.perf_counter()
squeeze.quantize(sys.argv[1], squeeze.GPTQ(bits=4), calibration=tokens, out=sys.argv[2], overwrite=True,
                 correction=float(sys.argv[5]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, round(time.perf_counter() - started))
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--blocks", type=int, default=44)
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--correction", type=float, default=0.5)
    args = parser.parse_args()
    torch.manual_seed(0)
    block = write(args.work / "random", args.blocks)
    command = [
        sys.executable,
        "-c",
        RUN,
        args.work / "random",
        args.work / "out",
        args.threads,
        args.samples,
        args.correction,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    peak, seconds = map(int, done.stdout.split())
    parameters = block * args.blocks + 2 * 32000 * 2048
    print(f"{parameters / 1e9:.2f} thousand million weights, {seconds} s, peak {peak >> 20} MiB")
    over = (peak - 8 * block) >> 20
    print(f"twice the largest block in float32: {8 * block >> 20} MiB; above it {over} MiB (allowed 1024)")


if __name__ == "__main__":
    main()
