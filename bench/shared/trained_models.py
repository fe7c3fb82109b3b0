"""Models that benchmarks train: a small mixture of experts, and a fine-tune of the bundled model on source code.

The mixture is trained on two kinds of prose and on source code, so that its experts differ, in about two minutes of one
core. The fine-tune changes the matrices of the blocks, in about four minutes. Both use AdamW with a warm-up and a
cosine decay. The texts are those of SQUEEZE_CORPUS and the standard library of Python.
"""

import math
import os
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.engine.network import find_blocks, is_linear
from squeeze.integrations.load_model import load_model
from squeeze.recipes.train.trainer import cast

__all__ = ["TUNING_STEPS", "code", "held_out", "mixture", "sources", "tuned"]

TUNING_STEPS = 32
_LENGTH = 256  # tokens of a sequence
_VOCABULARY, _MIXTURE_STEPS = 1024, 700
_SIZES: dict[str, Any] = {
    **{"vocab_size": _VOCABULARY, "hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128},
    **{"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
    **{"num_experts": 16, "num_experts_per_tok": 2, "norm_topk_prob": True, "router_aux_loss_coef": 0.01},
    **{"tie_word_embeddings": True, "output_router_logits": True, "max_position_embeddings": 1024},
}
_HELD = 20  # each source's last part of so many is held out
_MOST = 20_000  # characters of a module


def _modules() -> list[str]:
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return [path.read_text("utf-8", "ignore") for path in paths]


def sources() -> dict[str, str]:
    """Return the texts of the mixture by kind: encyclopedia, books and source code."""
    texts = Path(os.environ["SQUEEZE_CORPUS"], "text")
    books = ("alice29.txt", "asyoulik.txt", "lcet10.txt", "plrabn12.txt")
    return {
        "encyclopedia": (texts / "enwik8.10m").read_text("utf-8", "ignore")[:2_000_000],
        "books": "\n".join((texts / name).read_text("latin-1") for name in books),
        "code": "\n".join(_modules())[:2_000_000],
    }


def held_out() -> dict[str, str]:
    """Return the part of each source that training the mixture does not see."""
    return {kind: text[-(len(text) // _HELD) :] for kind, text in sources().items()}


def code() -> tuple[str, str]:
    """Return the source code that the fine-tune is trained on, and what it does not see."""
    pieces = [text[:_MOST] for text in _modules()]
    return "\n".join(text for place, text in enumerate(pieces) if place % 10), "\n".join(pieces[::10])


def mixture(folder: Path) -> None:
    """Train the mixture and its tokenizer, and write them to a folder."""
    seen = [text[: -(len(text) // _HELD)] for text in sources().values()]
    tokenizer = _tokenizer(seen)
    streams = [torch.tensor(tokenizer(text, verbose=False)["input_ids"]) for text in seen]
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM._from_config(Qwen3MoeConfig(**_SIZES), experts_implementation="eager")

    def loss(step: int) -> torch.Tensor:
        ids = torch.stack([_stretch(streams[(step * 4 + row) % len(streams)]) for row in range(4)])
        found: torch.Tensor = model(input_ids=ids, labels=ids).loss
        return found

    _descend(list(model.parameters()), loss, _MIXTURE_STEPS, rate=4e-3, warm=30, decay=0.05, least=0.05)
    model.config.output_router_logits = False
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tuned(original: Path, folder: Path, steps: int = TUNING_STEPS) -> None:
    """Fine-tune a model, and write it to a folder.

    Args:
        original: folder of the model
        folder: new folder
        steps: number of steps of two sequences
    """
    tokenizer, model = load_tokenizer(original), load_model(original, torch.float32)
    ids = torch.tensor(tokenizer(code()[0], verbose=False)["input_ids"])
    model.requires_grad_(False)
    inside = tuple(f"{name}." for name in find_blocks(model))
    matrices = [module for name, module in model.named_modules() if is_linear(module) and name.startswith(inside)]
    weights = [matrix.weight.requires_grad_(True) for matrix in matrices]
    torch.manual_seed(0)

    def loss(step: int) -> torch.Tensor:
        batch = torch.stack([_stretch(ids) for _ in range(2)])
        with cast(torch.device("cpu")):
            found: torch.Tensor = model(input_ids=batch, labels=batch).loss
        return found

    _descend(weights, loss, steps, rate=2e-4, warm=4)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _stretch(stream: torch.Tensor) -> torch.Tensor:
    first = int(torch.randint(len(stream) - _LENGTH, ()))
    return stream[first : first + _LENGTH]


def _tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator((text[:300_000] for text in texts), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def _descend(
    weights: Sequence[torch.nn.Parameter],
    loss_of: Callable[[int], torch.Tensor],
    steps: int,
    rate: float,
    warm: int,
    decay: float = 0.0,
    least: float = 0.0,
) -> None:
    """Train weights, and print the loss now and then.

    Args:
        weights: parameters
        loss_of: function from the number of a step to the loss of its batch
        steps: number of steps
        rate: largest learning rate
        warm: steps in which the rate grows
        decay: weight decay of AdamW
        least: share of the rate at the end
    """
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.95), weight_decay=decay, fused=True)
    for step in range(steps):
        cosine = least + (1 - least) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / warm) * cosine
        loss = loss_of(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step + 1 == steps:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
