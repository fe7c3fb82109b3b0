"""The bytes that tokens spell, from the text of a tokenizer.json, into which GGUF metadata is converted."""

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from squeeze.errors import ModelError, printable

SPACE = "\u2581"  # a space in vocabularies of SentencePiece
NORMAL, UNKNOWN, USER_DEFINED, UNUSED = 1, 2, 4, 5  # kinds of tokens in GGUF
_LONGEST = 4096  # characters of a token
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
T = TypeVar("T")


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's characters for bytes: printable ones are themselves, others start at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF = _byte_alphabet()


def is_bytewise(description: Mapping[str, Any]) -> bool:
    """Return whether tokens are written in GPT-2's characters for bytes, else as in SentencePiece."""
    text = json.dumps([description.get("pre_tokenizer"), description.get("decoder")])
    return '"ByteLevel"' in text


def entries(description: Mapping[str, Any]) -> dict[str, int]:
    """Return every token of the model's own vocabulary."""
    vocabulary = description["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: [token, score]
        return {entry[0]: i for i, entry in enumerate(vocabulary)}
    return {str(token): int(i) for token, i in vocabulary.items()}


def check(name: str, description: Mapping[str, Any]) -> None:
    kind = description["model"].get("type", "BPE")
    described = json.dumps(
        [description.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")], ensure_ascii=False
    )
    if kind not in ("BPE", "Unigram") or not (is_bytewise(description) or SPACE in described):
        raise ModelError(
            f"{name}: a tokenizer of the kind '{printable(kind)}' is not supported; BPE and SentencePiece are"
        )


def spell(description: Mapping[str, Any], size: int) -> tuple[tuple[bytes, ...], np.ndarray]:
    """Return the bytes that each of `size` tokens spells, and the *leaves*.

    Tokens that are not text spell b"". The leaves, int32, are one token for each distinct byte string, sorted by it.
    """
    bytewise, model = is_bytewise(description), description["model"]
    fallback: set[int] = set()  # byte tokens such as <0x41>
    tokens = [b""] * size
    for text, i in entries(description).items():
        if not 0 <= i < size or text == model.get("unk_token") or i == model.get("unk_id"):
            continue
        if bytewise:
            if all(c in BYTE_OF for c in text):
                tokens[i] = bytes(BYTE_OF[c] for c in text)
        elif model.get("byte_fallback") and (match := BYTE.fullmatch(text)):
            tokens[i] = bytes([int(match[1], 16)])
            fallback.add(i)
        else:
            tokens[i] = text.replace(SPACE, " ").encode("utf-8", "replace")
    for added in description.get("added_tokens") or []:
        if 0 <= added["id"] < size:
            tokens[added["id"]] = b"" if added.get("special") else added["content"].encode("utf-8", "replace")
    return tuple(tokens), leaves(tokens, fallback)


def leaves(tokens: Sequence[bytes], fallback: Container[int] = ()) -> np.ndarray:
    """Return one token for each distinct byte string that is not empty, sorted by it; those in `fallback` are the last
    choice."""
    best: dict[bytes, int] = {}
    for i in sorted(range(len(tokens)), key=lambda i: (i in fallback, i)):
        if tokens[i]:
            best.setdefault(tokens[i], i)
    return np.array([best[text] for text in sorted(best)], np.int32)


_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {  # applied one after the other
    "llama3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "gpt2": (GPT2,),
    "digits": (r"\p{N}", GPT2),
    "tekken": (_TEKKEN,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"),
}
_PRE_TOKENIZERS = {  # values of tokenizer.ggml.pre in llama.cpp
    "llama3": ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "smaug-bpe", "dbrx", "lfm2"),
    "qwen2": ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"),
    "gpt2": ("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "roberta-bpe", "jina-es", "jina-de"),
    "digits": ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    "tekken": ("tekken",),
    "default": ("default", ""),
    "falcon": ("falcon",),
}
_WHOLE_WORDS_FIRST = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "tekken")


def from_gguf(name: str, fields: Mapping[str, Any]) -> str:
    """Return the tokenizer.json of a GGUF file's metadata.

    Raises:
        ModelError: if the tokenizer is not supported.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ModelError(f"{name}: a tokenizer of the kind '{printable(kind)}' is not supported; gpt2 and llama are")
    tokens = _list_of(fields, "tokens", str)
    if any(len(token) > _LONGEST for token in tokens):
        raise ModelError(f"{name}: a token is longer than {_LONGEST} characters")
    kinds = _list_of(fields, "token_type", int) if fields.get("tokenizer.ggml.token_type") else [NORMAL] * len(tokens)
    vocabulary: dict[str, int] = {}
    added = []
    unknown = None
    for i, (token, token_kind) in enumerate(zip(tokens, kinds, strict=True)):
        if token_kind == UNKNOWN:
            unknown = token
        if token_kind in (NORMAL, UNKNOWN, USER_DEFINED) or (token_kind == 6 and kind == "llama"):
            vocabulary.setdefault(token, i)
        if token_kind != NORMAL and token_kind != 6:
            added.append({"id": i, "content": token, "special": token_kind != USER_DEFINED})
    if kind == "llama":
        merges = _merges_by_score(vocabulary, _list_of(fields, "scores", float))
        special: dict[str, Any] = {"byte_fallback": "<0x00>" in vocabulary, "unk_token": unknown, "fuse_unk": True}
        space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        description: dict[str, Any] = {"normalizer": space, "pre_tokenizer": None}
    else:
        description = {"normalizer": None, "pre_tokenizer": _pre_tokenizer(name, fields)}
        pairs = (merge.split(" ", 1) for merge in _list_of(fields, "merges", str))
        merges = [p for p in pairs if len(p) == 2 and {*p, "".join(p)} <= vocabulary.keys()]
        special = {"ignore_merges": fields.get("tokenizer.ggml.pre") in _WHOLE_WORDS_FIRST}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, **special}
    return json.dumps({**description, "added_tokens": added, "model": model}, ensure_ascii=False)


def _pre_tokenizer(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    pre = str(fields.get("tokenizer.ggml.pre", "default"))
    split = next((ours for ours, names in _PRE_TOKENIZERS.items() if pre in names), None)
    if split is None:
        raise ModelError(f"{name}: the pre-tokenizer '{printable(pre)}' is not supported")
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in SPLITS[split]
    ]
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
    return {"type": "Sequence", "pretokenizers": steps}


def _list_of(fields: Mapping[str, Any], key: str, kind: type[T]) -> list[T]:
    """Return a list of the tokenizer's metadata.

    Raises:
        ValueError: if it is not a list of texts or of finite numbers.
    """
    values = fields[f"tokenizer.ggml.{key}"]
    if not isinstance(values, list) or not all(type(one) is kind and one == one for one in values):  # NaN is not itself
        raise ValueError(f"tokenizer.ggml.{key} must be a list of {kind.__name__}")
    return values


def _merges_by_score(vocabulary: Mapping[str, int], scores: list[float]) -> list[list[str]]:
    """Return merges in the order of SentencePiece, which joins the pair whose result has the best score."""
    merges = []
    for token, i in vocabulary.items():
        pairs = [(token[:k], token[k:]) for k in range(1, len(token))]
        known = [(vocabulary[a], vocabulary[b], a, b) for a, b in pairs if a in vocabulary and b in vocabulary]
        merges += [(-scores[i], i, a, b) for *_, a, b in sorted(known)]
    merges.sort(key=lambda merge: merge[:2])  # stable
    return [[a, b] for *_, a, b in merges]
