"""Peak memory of what looks at a model as a whole, beside all its weights in float32: pairs, slices, training.

Writes a Llama checkpoint of random bf16 weights into WORK, and runs each in a process of its own: `plan`, `modegpt`,
`slicegpt`, two steps of healing what modegpt made, and of recovering what magnitude pruned, by block and in memory.
`held` is the most memory that was no file's (sampled), `peak` the most with pages of files, which the system drops when
memory is short.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench.entry import Row

_HIDDEN, _WIDE, _KEYS, _VOCABULARY = 1024, 2816, 256, 16000
CONFIG = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": _HIDDEN},
    **{"intermediate_size": _WIDE, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64},
    **{"vocab_size": _VOCABULARY, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    **{"tie_word_embeddings": False, "torch_dtype": "bfloat16"},
}
_MADE = {"plan": "planned", "modegpt": "paired", "slicegpt": "sliced"}  # where each writes
_TRAINED = {"heal": "paired", "recover": "pruned", "recover-32": "pruned"}  # what each trains
RUN = """
import re, sys, threading, time, torch, transformers
import squeeze
from squeeze.recipes.train import by_block, heal, retrain
from squeeze.recipes.train.distil import Training
torch.set_num_threads(int(sys.argv[5]))
task, source, out, place = sys.argv[1:5]
def now(kind):
    return int(re.search(kind + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
held = []
def watch():
    while True:
        held.append(now("RssAnon"))
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
tokens = torch.randint(0, 16000, (4, 128), generator=torch.Generator().manual_seed(0))
by_block.free_memory = lambda: 0 if place == "by block" else 1 << 60
training, started = Training(minutes=60, steps=2), time.perf_counter()
if task in ("plan", "modegpt", "slicegpt"):
    squeeze.factorize(source, task, keep=0.75, calibration=tokens, out=out, overwrite=True)
elif task == "prune":
    squeeze.prune(source, "magnitude", out=out, overwrite=True)
elif task == "heal":
    heal.heal(source, out, tokens, training)
elif task.startswith("recover"):
    retrain.recover(source, out, tokens, training, 32 if "32" in task else None)
print(max([*held, now("RssAnon")]), now("VmHWM"), round(time.perf_counter() - started))
"""


def write(folder: Path, blocks: int) -> int:
    """Write the checkpoint; its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    inner = {f"self_attn.{leaf}_proj": (_HIDDEN, _HIDDEN) for leaf in "qo"}
    inner |= {f"self_attn.{leaf}_proj": (_KEYS, _HIDDEN) for leaf in "kv"}
    inner |= {f"mlp.{leaf}_proj": (_WIDE, _HIDDEN) for leaf in ("gate", "up")}
    inner |= {"mlp.down_proj": (_HIDDEN, _WIDE)}
    norms = {"input_layernorm": (_HIDDEN,), "post_attention_layernorm": (_HIDDEN,)}
    shapes: dict[str, tuple[int, ...]] = {
        f"model.layers.{block}.{key}.weight": shape for block in range(blocks) for key, shape in (inner | norms).items()
    }
    shapes |= {
        "model.embed_tokens.weight": (_VOCABULARY, _HIDDEN),
        "lm_head.weight": (_VOCABULARY, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    save_file(
        {key: torch.randn(shape, dtype=torch.bfloat16) * 0.02 for key, shape in shapes.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": blocks}))
    return sum(torch.Size(shape).numel() for shape in shapes.values())


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.manual_seed(0)
    work: Path = options.work
    weights = write(work / "random", options.blocks)

    def run(task: str, out: str, place: str = "by block") -> Row:
        command = [sys.executable, "-c", RUN, task, work / "random", work / out, place, options.threads]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        held, peak, seconds = map(int, done.stdout.split())
        sizes = {"weights": weights, "held": held, "peak": peak, "seconds": seconds, "threads": options.threads}
        return {"task": task, "place": place, "blocks": options.blocks, **sizes}

    tasks = [task.strip() for task in options.tasks.split(",")]
    if unknown := set(tasks) - {"nothing", *_MADE, *_TRAINED}:
        raise SystemExit(f"Error: there is no task {min(unknown)!r}")
    for task, out in {"nothing": "none", **_MADE}.items():
        if task in tasks:
            yield run(task, out)
        elif task == "modegpt" and "heal" in tasks:
            run(task, out)
    if any(task.startswith("recover") for task in tasks):
        run("prune", "pruned")
    for task, made in _TRAINED.items():
        for place in options.places.split(",") if task in tasks else ():
            shutil.rmtree(work / "trained", ignore_errors=True)
            shutil.copytree(work / made, work / "trained")
            yield run(task, "trained", place)
