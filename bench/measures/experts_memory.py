"""Peak memory of quantising a mixture of experts that is stored in FP8, beside twice its largest block as float32.

Writes a Qwen3-MoE of random weights into WORK, FP8 in blocks of 128 x 128 as DeepSeek-V3 is published (two thousand
million weights with 20 blocks of 64 experts), and quantises it with GPTQ to 4 bits in a process of its own.
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

_HIDDEN, _WIDE, _EXPERTS, _VOCABULARY = 1024, 512, 64, 4096
CONFIG = {
    **{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": _HIDDEN},
    **{"intermediate_size": _WIDE, "moe_intermediate_size": _WIDE, "num_experts": _EXPERTS, "num_experts_per_tok": 8},
    **{"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": _VOCABULARY},
    **{"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "tie_word_embeddings": False, "dtype": "bfloat16"},
    "norm_topk_prob": True,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
}
RUN = """
import resource, sys, time, torch
import squeeze
torch.set_num_threads(int(sys.argv[3]))
tokens = torch.randint(0, 4096, (int(sys.argv[4]), 128), generator=torch.Generator().manual_seed(0))
started = time.perf_counter()
report = squeeze.quantize(sys.argv[1], squeeze.GPTQ(bits=4), calibration=tokens, out=sys.argv[2], overwrite=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, round(time.perf_counter() - started),
      sum(layer.shape[0] * layer.shape[1] for layer in report.layers if ".experts." in layer.name))
"""


def write(folder: Path, blocks: int) -> int:
    """Write the checkpoint; the weights of a block."""
    folder.mkdir(parents=True, exist_ok=True)
    matrices = {f"self_attn.{leaf}_proj": (_HIDDEN, _HIDDEN) for leaf in "qo"}
    matrices |= {f"self_attn.{leaf}_proj": (_HIDDEN // 4, _HIDDEN) for leaf in "kv"}
    for number in range(_EXPERTS):
        matrices |= {f"mlp.experts.{number}.{leaf}_proj": (_WIDE, _HIDDEN) for leaf in ("gate", "up")}
        matrices[f"mlp.experts.{number}.down_proj"] = (_HIDDEN, _WIDE)
    floats: dict[str, tuple[int, ...]] = {"mlp.gate": (_EXPERTS, _HIDDEN)}
    floats |= {"input_layernorm": (_HIDDEN,), "post_attention_layernorm": (_HIDDEN,)}
    floats |= {"self_attn.q_norm": (64,), "self_attn.k_norm": (64,)}
    places = {}

    def put(name: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, folder / name)
        places.update(dict.fromkeys(tensors, name))

    for block in range(blocks):
        tensors = {}
        for key, shape in matrices.items():
            tensors[f"model.layers.{block}.{key}.weight"] = torch.randn(shape).to(torch.float8_e4m3fn)
            tensors[f"model.layers.{block}.{key}.weight_scale_inv"] = torch.full([-(-n // 128) for n in shape], 0.02)
        for key, shape in floats.items():
            tensors[f"model.layers.{block}.{key}.weight"] = torch.randn(shape, dtype=torch.bfloat16)
        put(f"block-{block}.safetensors", tensors)
    outer = {
        "model.embed_tokens.weight": (_VOCABULARY, _HIDDEN),
        "lm_head.weight": (_VOCABULARY, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    put("outer.safetensors", {key: torch.randn(shape, dtype=torch.bfloat16) for key, shape in outer.items()})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": blocks}))
    return sum(torch.Size(shape).numel() for shape in (*matrices.values(), *floats.values()))


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.manual_seed(0)
    block = write(options.work / "fp8", options.blocks)
    command = [sys.executable, "-c", RUN, options.work / "fp8", options.work / "out", options.threads, options.samples]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    peak, seconds, experts = map(int, done.stdout.split())
    share = experts / (options.blocks * _EXPERTS * 3 * _HIDDEN * _WIDE)
    sizes = {"weights": block * options.blocks, "block": 8 * block, "peak": peak, "above": peak - 8 * block}
    about = {"blocks": options.blocks, "samples": options.samples, "threads": options.threads}
    yield {**about, "experts": share, **sizes, "seconds": seconds}
