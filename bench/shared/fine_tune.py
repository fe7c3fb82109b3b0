"""A fine-tune to measure on: the bundled model learns the code of Python's standard library.

AdamW in float32, a sequence a step, its rate rising and then falling to nothing; the result is in bf16, as the model
was. Every tenth module of the library is held out.
"""

import gc
import math
import shutil
import sysconfig
from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.text import read_tokens
from squeeze.integrations.load_model import load_model
from squeeze.recipes.train.trainer import cast

__all__ = ["fine_tune", "write_texts"]

_LENGTH = 128  # tokens of a sequence
_WARM_UP, _HELD_OUT = 10, 10
_KEPT = 20  # steps


def write_texts(folder: Path) -> tuple[Path, Path]:
    """The text to train and calibrate on, and the one to measure on."""
    paths = folder / "train.txt", folder / "held-out.txt"
    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    for path, held_out in zip(paths, (False, True), strict=True):
        chosen = [one for i, one in enumerate(modules) if (i % _HELD_OUT == 0) == held_out]
        path.write_text("\n\n".join(one.read_text("utf-8") for one in chosen), "utf-8")
    return paths


def fine_tune(base: Path, text: Path, out: Path, steps: int, rate: float, frozen: bool) -> None:
    """Write the fine-tune of a model's folder to `out`. frozen: the embeddings stay as they are. What is done is kept
    beside `out` now and then, and a run that was stopped goes on from there."""
    torch.manual_seed(0)
    tokens = read_tokens(text, base)
    sequences = tokens[: len(tokens) // _LENGTH * _LENGTH].view(-1, _LENGTH)
    order = torch.randperm(len(sequences))
    model = load_model(base).train()
    model.requires_grad_(True)
    model.get_input_embeddings().requires_grad_(not frozen)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.01, fused=True)
    kept = out.with_name(f"{out.name}.partial")
    for step in range(_resumed(kept, model, optimizer), steps):
        if step % _KEPT == 0 and step:
            _keep(kept, step, model, optimizer)
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / _WARM_UP, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        ids = sequences[order[step % len(order)], None]
        with cast(torch.device("cpu")):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    del optimizer
    gc.collect()
    model.to(torch.bfloat16).save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(base / name, out / name)
    kept.unlink(missing_ok=True)


def _keep(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    beside = path.with_name(f"{path.name}.new")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, beside)
    beside.replace(path)


def _resumed(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step to go on with."""
    if not path.is_file():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
