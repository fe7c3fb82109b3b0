"""Conversion of a tokenizer.json to GGUF's metadata, for the tokenizers that llama.cpp has.

This is the inverse of lm.vocabulary.from_gguf.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from squeeze.errors import ModelError, printable
from squeeze.lm.vocabulary import BYTE, GPT2, NORMAL, SPACE, SPLITS, UNKNOWN, UNUSED, USER_DEFINED, entries

__all__ = ["Vocabulary", "vocabulary_of"]

_CONTROL, _BYTE_KIND = 3, 6
_NAMES = {  # tokenizer.ggml.pre, by the splits that llama.cpp makes for it
    SPLITS["llama3"]: "llama-bpe",
    SPLITS["qwen2"]: "qwen2",
    SPLITS["gpt2"]: "gpt-2",
    SPLITS["digits"]: "smollm",
    SPLITS["tekken"]: "tekken",
    SPLITS["falcon"]: "falcon",
}
_MERGED = {"llama-bpe": "smaug-bpe"}  # the same splits where a word that is a token is merged all the same


class Vocabulary:
    """A tokenizer in GGUF's terms.

    `model` is "gpt2" (bytes) or "llama" (SentencePiece). `pre` names how texts are split, None for SentencePiece.
    `tokens` and `kinds` have an entry for each row of the embedding. `scores` are SentencePiece's, which give the order
    of merges. `space` means that a space is put before a text, `start` that the token `bos` is.
    """

    def __init__(self, name: str, description: Mapping[str, Any], rows: int) -> None:
        model = description["model"]
        if model.get("type") != "BPE":
            raise _unknown(name, f"a tokenizer of the kind {printable(repr(model.get('type')))}")
        self.by_token = entries(description)
        if max(self.by_token.values(), default=-1) >= rows:
            raise ModelError(f"{name}: its tokenizer has more tokens than its embedding has rows, {rows}")
        self.tokens = [f"[PAD{i}]" for i in range(rows)]
        self.kinds = [UNUSED] * rows
        sentence_piece = bool(model.get("byte_fallback"))
        for token, i in self.by_token.items():
            self.tokens[i] = token
            self.kinds[i] = _BYTE_KIND if sentence_piece and BYTE.fullmatch(token) else NORMAL
        for added in description.get("added_tokens") or []:
            if added["id"] < rows:
                self.tokens[added["id"]] = added["content"]
                self.kinds[added["id"]] = _CONTROL if added.get("special") else USER_DEFINED
        unknown = self.by_token.get(model.get("unk_token") or "")
        if sentence_piece and unknown is not None:
            self.kinds[unknown] = UNKNOWN
        self.model = "llama" if sentence_piece else "gpt2"
        self.pre = None if sentence_piece else _split_of(name, description)
        self.scores = _scores(self.tokens, model["merges"]) if sentence_piece else None
        self.space = sentence_piece and _puts_space(description)
        if sentence_piece and SPACE not in json.dumps(description, ensure_ascii=False):
            raise _unknown(name, "a tokenizer that falls back to bytes and is not SentencePiece's")

    def starts_with(self, description: Mapping[str, Any], token: int | None) -> bool:
        """Return whether a tokenizer puts this token before every text."""
        library = tokenizers.Tokenizer.from_str(json.dumps(description))
        plain, whole = (library.encode("a", add_special_tokens=special).ids for special in (False, True))
        return token is not None and len(whole) > len(plain) and whole[0] == token


def vocabulary_of(name: str, description: Mapping[str, Any], rows: int) -> Vocabulary:
    """Convert a tokenizer.json; raises ModelError if llama.cpp has no name for it, or it is damaged."""
    try:
        return Vocabulary(name, description, rows)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ModelError(f"{name}: its tokenizer.json is damaged") from None


def _unknown(name: str, what: str) -> ModelError:
    return ModelError(f"{name}: cannot be written as GGUF: it has {what}")


def _split_of(name: str, description: Mapping[str, Any]) -> str:
    """Return tokenizer.ggml.pre of a byte-level tokenizer."""
    if (description.get("normalizer") or {"type": "NFC"})["type"] != "NFC":
        raise _unknown(name, "a tokenizer that changes texts before it splits them")
    found = _NAMES.get(tuple(_splits(name, description.get("pre_tokenizer") or {})))
    if found is None:
        raise _unknown(name, f"a tokenizer that splits texts otherwise than {', '.join(_NAMES.values())}")
    return found if description["model"].get("ignore_merges") else _MERGED.get(found, found)


def _splits(name: str, step: Mapping[str, Any]) -> Iterator[str]:
    """Return the patterns that a text is split by, in order."""
    if step.get("type") == "Sequence":
        for one in step["pretokenizers"]:
            yield from _splits(name, one)
    elif step.get("type") == "Split" and step["behavior"] == "Isolated" and not step.get("invert"):
        yield step["pattern"].get("Regex", "")
    elif step.get("type") == "Digits" and step["individual_digits"]:
        yield r"\p{N}"
    elif step.get("type") == "ByteLevel":
        if step.get("add_prefix_space"):
            raise _unknown(name, "a tokenizer that puts a space before texts")
        if step.get("use_regex", True):
            yield GPT2
    else:
        yield f"<{step.get('type')}>"


def _scores(tokens: list[str], merges: list[Any]) -> list[float]:
    """Return scores of tokens that reproduce the order of merges."""
    pairs = (merge if isinstance(merge, list) else merge.split(" ") for merge in merges)
    ranks: dict[str, int] = {}
    for rank, (first, second) in enumerate(pairs):
        ranks.setdefault(first + second, rank)
    return [-float(ranks.get(token, len(ranks))) for token in tokens]


def _puts_space(description: Mapping[str, Any]) -> bool:
    text = json.dumps([description.get("normalizer"), description.get("pre_tokenizer")])
    return '"Prepend"' in text or '"prepend_scheme": "always"' in text or '"prepend_scheme": "first"' in text
