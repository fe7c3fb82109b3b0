"""A short fine-tune of the bundled model on Python source code: the matrices of its blocks, by Adam.

It takes about four minutes of one core. The texts are those of Python's standard library.
"""

import sysconfig
from pathlib import Path

import torch

from bench.shared.descent import descend
from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.engine.network import find_blocks, is_linear
from squeeze.integrations.load_model import load_model
from squeeze.recipes.train.trainer import cast

__all__ = ["LENGTH", "STEPS", "held_out", "seen", "tuned"]

LENGTH, BATCH, STEPS = 256, 2, 32
_RATE, _WARM = 2e-4, 4
_HELD = 10  # one module in so many is held out
_MOST = 20_000  # characters of a module


def _modules() -> list[str]:
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return [path.read_text("utf-8", "ignore")[:_MOST] for path in paths]


def seen() -> str:
    """Return the source code that the model is tuned on."""
    return "\n".join(text for place, text in enumerate(_modules()) if place % _HELD)


def held_out() -> str:
    """Return source code that tuning does not see."""
    return "\n".join(_modules()[::_HELD])


def tuned(original: Path, folder: Path, steps: int = STEPS, seed: int = 0) -> Path:
    """Fine-tune a model, and write it to a folder.

    Args:
        original: Folder of the model.
        folder: New folder.
        steps: Number of steps of BATCH sequences of LENGTH tokens.
        seed: Seed of the order of the text.
    """
    tokenizer, model = load_tokenizer(original), load_model(original, torch.float32)
    ids = torch.tensor(tokenizer(seen(), verbose=False)["input_ids"])
    model.requires_grad_(False)
    inside = tuple(f"{name}." for name in find_blocks(model))
    matrices = [module for name, module in model.named_modules() if is_linear(module) and name.startswith(inside)]
    weights = [matrix.weight.requires_grad_(True) for matrix in matrices]
    generator, device = torch.Generator().manual_seed(seed), torch.device("cpu")

    def loss(step: int) -> torch.Tensor:
        firsts = torch.randint(len(ids) - LENGTH, (BATCH,), generator=generator)
        batch = torch.stack([ids[first : first + LENGTH] for first in firsts])
        with cast(device):
            found: torch.Tensor = model(input_ids=batch, labels=batch).loss
        return found

    descend(weights, loss, steps, _RATE, _WARM)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
