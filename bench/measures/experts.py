"""What quantising a mixture of experts costs, on a small one that is trained here, byte by byte, on a text.

Its shape is that of Qwen3-MoE made small: 4 blocks of 16 experts, of which a token reaches 2. Rows "few" have so few
calibration tokens that most experts get less than they have inputs: "nearest" rounds those to nearest, as if they were
not shown all tokens of their layer.
"""

import argparse
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers

import squeeze
from bench.entry import Row
from bench.shared.small_models import bytes_of
from squeeze.engine import block
from squeeze.engine.experts import is_expert
from squeeze.engine.quality import evaluate
from squeeze.integrations.load_model import load_model

_LENGTH = 256
_FEW = 2  # sequences of the calibration
SHOWN = ("_reached_by_few", lambda *_: None)  # of a walk, what finds experts to show all tokens, and what finds none
_WAYS: dict[str, dict[str, Any]] = {
    "rtn-4": {"method": "rtn", "bits": 4},
    "gptq-4": {"bits": 4},
    "gptq-3": {"bits": 3},
    "gptq-3, few": {"bits": 3, "samples": _FEW},
    "gptq-3, few, nearest": {"bits": 3, "samples": _FEW},
    "gptq-2": {"bits": 2},
    "gptq experts=2,8": {"bits": "experts=2,8"},
    "gptq experts=3,8": {"bits": "experts=3,8"},
    "gptq, 3 bits stored": {"bits": 4, "target_bits": 3.0},
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(options.threads)
    texts = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
    original, found = options.work / "mixture", options.work / "out"
    training, held = (_bytes(texts / name) for name in ("wiki.calibration.raw", "wiki.eval.raw"))
    if not original.is_dir():
        _train(training, options.steps).bfloat16().save_pretrained(original)
    calibration = _sequences(training, options.samples, 1)
    base = _perplexity(original, held, options.windows)
    experts = _experts(original)
    about = {"steps": options.steps, "samples": options.samples, "windows": options.windows}
    yield {**about, "name": "original", "perplexity": base}
    for name, asked in _WAYS.items():
        way = {"method": "gptq", **asked}
        tokens = calibration[: way.pop("samples", options.samples)]
        with patch.object(block._Walk, *SHOWN) if "nearest" in name else patch.dict({}):
            report = squeeze.quantize(
                original,
                **way,
                out=found,
                symmetric=False,
                format="squeeze",
                calibration=tokens,
                overwrite=True,
            )
        weights = sum(layer.shape[0] * layer.shape[1] for layer in report.layers if is_expert(layer.name))
        perplexity = _perplexity(found, held, options.windows)
        figures = {"bits": report.bits_per_weight, "bytes": bytes_of(report.layers), "noted": len(report.fallbacks)}
        gap = math.log(perplexity / base)
        yield {**about, "name": name, "experts": weights / experts, **figures, "perplexity": perplexity, "gap": gap}


def _bytes(path: Path) -> torch.Tensor:
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()


def _sequences(tokens: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    starts = torch.randint(0, len(tokens) - _LENGTH, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([tokens[start : start + _LENGTH] for start in starts.tolist()])


def _train(tokens: torch.Tensor, steps: int) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=16,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=1024,
    )
    model = transformers.Qwen3MoeForCausalLM(config)
    rate = 2e-3
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, step / 20) * (1 - 0.9 * step / steps)
        ids = _sequences(tokens, 8, step)
        loss = model(input_ids=ids, labels=ids, output_router_logits=True).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def _perplexity(folder: Path, tokens: torch.Tensor, windows: int) -> float:
    return evaluate(load_model(folder), tokens, window=_LENGTH, windows=windows).perplexity


def _experts(folder: Path) -> int:
    """Weights of all experts."""
    model = load_model(folder)
    return sum(value.numel() for name, value in model.named_parameters() if is_expert(name))
