"""Comparison of two models: their texts after the same prompts, and the distance between their predictions.

Both generate greedily. The distance is measured along the original's text, which both models read, so that both see the
same context at each token. The generated texts differ in every token after they diverge.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.pretrained import explained
from squeeze.checkpoint.text import tokenize
from squeeze.engine.quality import divergences
from squeeze.errors import FormatError, SqueezeError
from squeeze.numerics.intervals import interval
from squeeze.recipes.measure.generate import chat_prompt, opened, prompt_ids
from squeeze.recipes.reports.page_data import Place
from squeeze.system.documents import parse
from squeeze.system.limits import Limits

__all__ = ["Comparison", "Pair", "compare", "read_prompts"]

_WORST = 10  # places that are named
_CONTEXT = 12  # tokens before such a place


@dataclass(frozen=True)
class Pair:
    """Both texts after one prompt.

    `pieces` are the original's text by token, `kl` the divergence at each token in nats, and `agreed` whether the other
    model ranks the same token first. `same` counts the tokens before the texts diverge.
    """

    prompt: str
    original: str
    text: str
    pieces: tuple[str, ...]
    kl: tuple[float, ...]
    agreed: tuple[bool, ...]
    same: int

    @property
    def identical(self) -> bool:
        return self.original == self.text


@dataclass(frozen=True)
class Comparison:
    """Means over all tokens of the original's texts, and the texts themselves.

    `kl_mean` and `kl_p99` are KL(original || model) in nats a token. `top1_agreement` is the share of tokens that the
    model ranks first as well. `same` is the share of tokens before the generated texts diverge, and `identical` counts
    texts that never do. `intervals` are 95 % confidence intervals with prompts taken as independent.
    """

    tokens: int
    kl_mean: float
    kl_p99: float
    top1_agreement: float
    same: float
    identical: int
    generations: list[Pair]
    worst: list[Place]
    intervals: dict[str, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of a file: its lines, or the "prompt" or "text" of each object of a .jsonl file.

    Raises SqueezeError if the file has no prompt, or a line is not such an object. Empty lines are skipped.
    """
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise SqueezeError(f"{path}: is not text in UTF-8") from None
    if path.suffix == ".jsonl":
        lines = [_prompt_of(path, line) for line in lines]
    if not lines:
        raise SqueezeError(f"{path}: has no prompt")
    return lines


def _prompt_of(path: Path, line: str) -> str:
    try:
        record = parse(line, Limits())
        prompt = record["prompt"] if "prompt" in record else record["text"]
    except (FormatError, KeyError, TypeError):
        prompt = None
    if not isinstance(prompt, str):
        raise SqueezeError(f'{path}: a line is not a JSON object with a "prompt" or a "text"')
    return prompt


@torch.inference_mode()
def compare(  # noqa: PLR0913
    original: Path,
    folder: Path,
    prompts: Sequence[str],
    *,
    tokens: int = 64,
    device: str = "cpu",
    resident: int | None = None,
    base: Path | None = None,
    chat: bool = False,
    progress: Callable[[int], None] = lambda n: None,
) -> Comparison:
    """Generate with both models after every prompt, and compare their texts and predictions.

    Args:
        original: Folder or GGUF file of the original model.
        folder: Folder or GGUF file of the other model.
        prompts: Texts to continue.
        tokens: Largest number of new tokens after each prompt.
        device: Torch device of both models.
        resident: Bytes of decoded weights to keep for `folder`, as in load_model.
        base: Base of `folder`, as in load_model.
        chat: Whether prompts are messages, for the original's chat template.
        progress: Called with 1 after each prompt.

    Raises:
        SqueezeError: If the models have different vocabularies, or a prompt does not fit them.
    """
    first, tokenizer = opened(original, device)
    second, other_tokenizer = opened(folder, device, resident, base)
    pairs: list[Pair] = []
    places: list[Place] = []
    for number, message in enumerate(prompts, 1):
        prompt = chat_prompt(tokenizer, message) if chat else message
        ids = prompt_ids(first, tokenizer, prompt, tokens)
        if not torch.equal(ids.cpu(), tokenize(other_tokenizer, prompt)[None]) or _size(first) != _size(second):
            raise SqueezeError(f"{original} and {folder} have different vocabularies, so they cannot be compared")
        pair, found = _pair(first, second, tokenizer, ids, tokens)
        pairs.append(Pair(message, **pair))
        places += [Place(number, **place) for place in found]
        progress(1)
    return _compared(pairs, sorted(places, key=lambda place: -place.kl)[:_WORST])


def _size(model: Any) -> int:
    return int(model.config.get_text_config().vocab_size)


def _pair(first: Any, second: Any, tokenizer: Any, ids: torch.Tensor, tokens: int) -> tuple[dict[str, Any], list[Any]]:
    """Return the fields of a Pair for prompt ids [1, P], and those of its worst Places."""
    original_ids, model_ids = (_greedy(model, ids, tokens) for model in (first, second))
    whole = torch.cat([ids[0], original_ids])
    start = ids.shape[1] - 1
    expected, found = (_log_probabilities(model, whole, start) for model in (first, second))
    kl, likeliest = divergences(expected, found), found.argmax(-1)
    pieces = _pieces(tokenizer, original_ids)
    fields = {
        "original": "".join(pieces),
        "text": tokenizer.decode(model_ids, skip_special_tokens=True),
        "pieces": pieces,
        "kl": tuple(kl.tolist()),
        "agreed": tuple((likeliest == original_ids).tolist()),
        "same": _same(original_ids, model_ids),
    }
    worst = kl.topk(min(_WORST, len(kl))).indices.tolist()
    places = [
        {
            "position": at,
            "kl": kl[at].item(),
            "before": tokenizer.decode(whole[max(start + 1 + at - _CONTEXT, 0) : start + 1 + at]),
            "token": tokenizer.decode(original_ids[at : at + 1]),
            "instead": tokenizer.decode(likeliest[at : at + 1]),
        }
        for at in worst
    ]
    return fields, places


def _greedy(model: Any, ids: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return the generated ids, int64 [N], at least one and none after the end of the text."""
    from transformers import GenerationConfig  # transformers takes seconds to import

    ends = {name: getattr(model.generation_config, name) for name in ("eos_token_id", "pad_token_id")}
    settings = GenerationConfig(max_new_tokens=tokens, do_sample=False, **ends)
    with explained(getattr(model, "name_or_path", "") or type(model).__name__):
        written = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    found: torch.Tensor = written[0, ids.shape[1] :]
    return found


def _log_probabilities(model: Any, ids: torch.Tensor, start: int) -> torch.Tensor:
    """Return log probabilities, float32 [N, V], of each token that follows position `start` of ids [L]."""
    with explained(getattr(model, "name_or_path", "") or type(model).__name__):
        logits = model(ids[None], use_cache=False).logits[0, start:-1]
    return torch.log_softmax(logits.float(), -1)


def _pieces(tokenizer: Any, ids: torch.Tensor) -> tuple[str, ...]:
    """Return the text that each token adds; a character of several tokens comes with the last of them."""
    pieces: list[str] = []
    text = ""
    for end in range(1, len(ids) + 1):
        longer = tokenizer.decode(ids[:end], skip_special_tokens=True)
        if longer.endswith("\N{REPLACEMENT CHARACTER}") and end < len(ids):
            longer = text
        pieces.append(longer[len(text) :])
        text = longer
    return tuple(pieces)


def _same(one: torch.Tensor, other: torch.Tensor) -> int:
    """Count the tokens that both sequences begin with."""
    shorter = min(len(one), len(other))
    return int((one[:shorter] == other[:shorter]).cumprod(0).sum())


def _compared(pairs: list[Pair], worst: list[Place]) -> Comparison:
    counts = [len(pair.kl) for pair in pairs]
    total = sum(counts)
    sums = {"kl_mean": [sum(pair.kl) for pair in pairs], "top1_agreement": [float(sum(pair.agreed)) for pair in pairs]}
    bounds = {name: interval(values, counts) for name, values in sums.items()}
    kl = torch.tensor([value for pair in pairs for value in pair.kl], dtype=torch.float64)
    return Comparison(
        tokens=total,
        kl_mean=sum(sums["kl_mean"]) / total,
        kl_p99=kl.quantile(0.99, interpolation="higher").item(),
        top1_agreement=sum(sums["top1_agreement"]) / total,
        same=sum(pair.same for pair in pairs) / total,
        identical=sum(pair.identical for pair in pairs),
        generations=pairs,
        worst=worst,
        intervals={name: list(found) for name, found in bounds.items() if found},
    )
