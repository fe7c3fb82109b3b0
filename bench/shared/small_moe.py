"""A small mixture of experts, trained on two kinds of prose and on source code, so that its experts differ.

Training takes about two minutes of one core. The texts are those of SQUEEZE_CORPUS and the standard library of Python.
"""

import os
import sysconfig
from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from bench.shared.descent import descend

__all__ = ["SIZES", "held_out", "sources", "trained"]

VOCABULARY, LENGTH, BATCH, STEPS = 1024, 256, 4, 700
SIZES: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128},
    **{"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
    **{"num_experts": 16, "num_experts_per_tok": 2, "norm_topk_prob": True, "router_aux_loss_coef": 0.01},
    **{"tie_word_embeddings": True, "output_router_logits": True, "max_position_embeddings": 1024},
}
_RATE, _WARM = 4e-3, 30
_HELD = 20  # each source's last part of so many is held out


def sources() -> dict[str, str]:
    """Return the texts by kind: encyclopedia, books and source code."""
    texts = Path(os.environ["SQUEEZE_CORPUS"], "text")
    books = ("alice29.txt", "asyoulik.txt", "lcet10.txt", "plrabn12.txt")
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return {
        "encyclopedia": (texts / "enwik8.10m").read_text("utf-8", "ignore")[:2_000_000],
        "books": "\n".join((texts / name).read_text("latin-1") for name in books),
        "code": "\n".join(path.read_text("utf-8", "ignore") for path in modules)[:2_000_000],
    }


def held_out() -> dict[str, str]:
    """Return the part of each source that training does not see."""
    return {kind: text[-(len(text) // _HELD) :] for kind, text in sources().items()}


def trained(folder: Path, steps: int = STEPS, seed: int = 0) -> Path:
    """Train the model and its tokenizer, and write them to a folder.

    Args:
        folder: New folder.
        steps: Number of steps of BATCH sequences of LENGTH tokens.
        seed: Seed of the weights and the order of the text.
    """
    seen = [text[: -(len(text) // _HELD)] for text in sources().values()]
    tokenizer = _tokenizer(seen)
    streams = [torch.tensor(tokenizer(text, verbose=False)["input_ids"]) for text in seen]
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM._from_config(Qwen3MoeConfig(**SIZES), experts_implementation="eager")

    def loss(step: int) -> torch.Tensor:
        ids = torch.stack([_stretch(streams[(step * BATCH + row) % len(streams)]) for row in range(BATCH)])
        found: torch.Tensor = model(input_ids=ids, labels=ids).loss
        return found

    descend(list(model.parameters()), loss, steps, _RATE, _WARM, decay=0.05, least=0.05)
    model.config.output_router_logits = False
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _stretch(stream: torch.Tensor) -> torch.Tensor:
    first = int(torch.randint(len(stream) - LENGTH, ()))
    return stream[first : first + LENGTH]


def _tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator((text[:300_000] for text in texts), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
