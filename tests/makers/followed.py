"""Checkpoints of a training run, and a run of follow over them."""

import json
from pathlib import Path

import numpy as np
import torch

import squeeze
from squeeze.packing.follow import Follow
from tests.makers.checkpoints import content, write
from tests.makers.floats import as_bf16, weights

FAST = {"interval": 0.002, "until_idle": 0.01}


def values(step: int) -> np.ndarray:
    """Return bf16 as integers, of which some change from step to step."""
    start, generator = as_bf16(weights(40_000)), np.random.default_rng(step)
    return start ^ (generator.random(start.size) < 0.02 * step / 1000).astype(np.uint16)


def checkpoint(step: int, folder: str = "run") -> Path:
    """Write a folder as transformers' Trainer does."""
    path = Path(folder, f"checkpoint-{step}")
    path.mkdir(parents=True)
    write(path / "model.safetensors", {"w": ("BF16", (200, 200), values(step).tobytes())})
    (path / "config.json").write_text('{"model_type": "llama"}')
    moments = torch.from_numpy(values(step)[:20_000].astype(np.float32))
    torch.save({"state": {0: {"exp_avg": moments}}}, path / "optimizer.pt")
    torch.save({"arguments": 1}, path / "training_args.bin")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def run(source: str = "run", target: str = "packed", **options: object) -> list[tuple[str, str]]:
    return [(e.kind, e.name) for e in Follow(source=Path(source), target=Path(target), **FAST, **options).run()]


def restored(name: str) -> bool:
    squeeze.unpack(f"packed/{name}", "back", overwrite=True)
    return content("back") == content(f"run/{name}")


def damage(path: Path, keep: float = 0.5) -> bytes:
    """Cut off the end of a file, and return its bytes before."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return data
