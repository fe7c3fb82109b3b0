"""Tokenizing any bytes: bytes that no token spells are escaped one by one.

The tokenizers library proposes tokens, as the model was trained with; every proposal is compared with the input.
Special tokens are never proposed: their names in a text are ordinary text. Decoding needs only the tokens' bytes, so a
file does not depend on how its text was cut into tokens, nor does decoding need the library.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from squeeze.checkpoint.pretrained import explained
from squeeze.errors import PackageError, VerifyError
from squeeze.lm import vocabulary

_INSTALL = "pip install --no-deps tokenizers"
_PIECE = 1 << 15  # characters of a piece that is tokenised at once
_SEARCHED = 1 << 12  # characters at a piece's end that are searched for a place to cut
_SMALL = 16  # characters below which text with a wrong proposal is not halved again
_BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_])(?= [^\W\d_])")
_INVALID = "\udc80-\udcff"  # surrogates of bytes that are not UTF-8
Propose = Callable[[str], list[int]]  # text to tokens
_AFTER_LINE = re.compile(r"(?<=\n)(?=[^\W\d_])")


class Tokenizer:
    """A map between bytes and entries, int32: an index into `leaves` if not negative, else -1 - byte, an escape."""

    def __init__(self, tokens: Sequence[bytes], leaves: np.ndarray, description: str | Propose) -> None:
        """Prepare for a vocabulary.

        Args:
            tokens: bytes that each token spells.
            leaves: codable tokens, sorted by their bytes.
            description: text of a tokenizer.json, or a function that proposes tokens.
        """
        self._tokens, self._description = tokens, description
        self._spelling = [tokens[i] for i in leaves]

    def decode(self, entries: np.ndarray) -> bytes:
        """Return the bytes that entries spell."""
        spelling = self._spelling
        return b"".join([spelling[e] if e >= 0 else bytes([-1 - e]) for e in np.asarray(entries).tolist()])

    @cached_property
    def _proposer(self) -> "_Proposer":
        return _Proposer(self._tokens, self._spelling, self._description)

    def encode(self, data: bytes) -> np.ndarray:
        """Return int32 entries that spell exactly `data`.

        Raises:
            VerifyError: if they do not, which is a fault of the machine.
        """
        proposer, pieces = self._proposer, [np.empty(0, np.int32)]
        for piece in _pieces(data.decode("utf-8", "surrogateescape")):
            pieces.append(np.array(proposer.encode(piece), np.int32))
        entries = np.concatenate(pieces)
        if self.decode(entries) != data:
            raise VerifyError("the tokens do not spell the input: this machine's memory or processor is faulty")
        return entries


class _Proposer:
    """Cuts text into entries; every proposal of the library is checked."""

    def __init__(self, tokens: Sequence[bytes], spelling: list[bytes], text: str | Propose) -> None:
        self._spelling = spelling
        self._index = {text: i for i, text in enumerate(spelling)}
        self._longest = [0] * 256  # spelling by its first byte
        for leaf in spelling:
            self._longest[leaf[0]] = max(self._longest[leaf[0]], len(leaf))
        self._leaf = [self._index.get(token, -1) for token in tokens]  # of each token
        if not isinstance(text, str):
            self._propose, self._apart = text, re.compile(f"([{_INVALID}]+)")
            return
        description = json.loads(text)
        self._apart = re.compile(f"([{self._unspellable(description)}]+)")
        library = _library(json.dumps(_plain(description), ensure_ascii=False))

        def propose(text: str) -> list[int]:
            with explained("the language model's tokenizer"):
                return list(library.encode(text, add_special_tokens=False).ids)

        self._propose = propose
        ids = library.get_vocab(with_added_tokens=True).values()
        self._leaf += [-1] * max(0, max(ids, default=0) + 1 - len(tokens))

    def encode(self, text: str) -> list[int]:
        entries: list[int] = []
        for i, stretch in enumerate(self._apart.split(text)):
            if i % 2:
                entries += self._greedy(stretch.encode("utf-8", "surrogateescape"))
            elif stretch:
                entries += self._checked(stretch)
        return entries

    def _checked(self, text: str) -> list[int]:
        """Return the library's tokens if they spell the text, else those of its parts."""
        leaf, spelling = self._leaf, self._spelling
        entries = [leaf[i] for i in self._propose(text)]
        data = text.encode()
        if -1 not in entries and b"".join([spelling[e] for e in entries]) == data:
            return entries
        if len(text) < _SMALL:
            return self._greedy(data)
        middle = _cut(text, len(text) // 4, 3 * len(text) // 4)
        return self._checked(text[:middle]) + self._checked(text[middle:])

    def _greedy(self, data: bytes) -> list[int]:
        """Return the longest token at each place, or an escape."""
        entries, start = [], 0
        while start < len(data):
            for size in range(min(self._longest[data[start]], len(data) - start), 0, -1):
                entry = self._index.get(data[start : start + size])
                if entry is not None:
                    break
            else:
                entry, size = -1 - data[start], 1
            entries.append(entry)
            start += size
        return entries

    def _unspellable(self, description: Any) -> str:
        """Return a class of characters that the library does not get.

        They are invalid bytes, which decoding has turned into surrogates, and characters that it would change.
        """
        characters = [_INVALID]
        if not vocabulary.is_bytewise(description):
            return characters[0] + vocabulary.SPACE
        for byte in range(256):
            if bytes([byte]) in self._index:
                continue
            if byte < 0x80:
                characters.append(re.escape(chr(byte)))
            elif first_character := _LEADS.get(byte):
                characters.append(first_character)
        return "".join(characters)


def _library(description: str) -> Any:
    """Return the library's tokenizer, which is imported only here: decoding goes without."""
    try:
        from tokenizers import Tokenizer as Library
    except ModuleNotFoundError as error:
        if error.name != "tokenizers":
            raise
        message = f"compression at levels 7 to 9 needs tokenizers, which is not installed: {_INSTALL}"
        raise PackageError(message) from error
    with explained("the language model's tokenizer is not supported"):
        return Library.from_str(description)


def _leads() -> dict[int, str]:
    """Return the range of characters that each first byte of a multibyte character starts."""
    out = {byte: f"{chr(max(byte - 0xC0 << 6, 0x80))}-{chr((byte - 0xC0 << 6) + 0x3F)}" for byte in range(0xC2, 0xE0)}
    out |= {
        byte: f"{chr(max(byte - 0xE0 << 12, 0x800))}-{chr((byte - 0xE0 << 12) + 0xFFF)}" for byte in range(0xE0, 0xF0)
    }
    for byte in range(0xF0, 0xF5):
        out[byte] = f"{chr(max(byte - 0xF0 << 18, 0x10000))}-{chr(min((byte - 0xF0 << 18) + 0x3FFFF, 0x10FFFF))}"
    return out


_LEADS = _leads()


def _plain(description: dict[str, Any]) -> dict[str, Any]:
    """Return the tokenizer without normalisers, leading spaces, special tokens and templates, which change or add
    text."""
    model, added = _without_special(description)
    pre_tokenizer = _without_leading_space(description.get("pre_tokenizer"))
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": vocabulary.SPACE}
    has_spaces = vocabulary.is_bytewise(description) or '"Metaspace"' in json.dumps(pre_tokenizer)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None if has_spaces else spaces,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": None,
        "model": model,
    }


def _without_special(description: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the vocabulary and merges without special tokens, and the added tokens that are text."""
    model, added = description["model"], description.get("added_tokens") or []
    special = {token["content"] for token in added if token.get("special")} - {model.get("unk_token")}
    exact = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    text = [{**token, **exact} for token in added if not token.get("special")]
    if isinstance(model["vocab"], list):  # Unigram: a token's place is its number
        known = vocabulary.entries(description)
        return model, [token for token in text if token["content"] in known]
    entries = {token: i for token, i in model["vocab"].items() if token not in special}
    entries |= {token["content"]: token["id"] for token in text}  # else the library would number them itself
    merges = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
    merges = [[a, b] for a, b in merges if not special & {a, b, a + b}]
    return {**model, "vocab": entries, "merges": merges}, text


def _without_leading_space(step: Any) -> Any:
    if isinstance(step, list):
        return [_without_leading_space(part) for part in step]
    if not isinstance(step, dict):
        return step
    step = {key: _without_leading_space(value) for key, value in step.items()}
    if step.get("type") == "ByteLevel":
        step["add_prefix_space"] = False
    if step.get("type") == "Metaspace":
        step = {"type": "Metaspace", "replacement": vocabulary.SPACE, "prepend_scheme": "never"} | {
            "split": step.get("split", True)
        }
    return step


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _PIECE:
        end = _cut(text, start + _PIECE - _SEARCHED, start + _PIECE)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut(text: str, low: int, high: int) -> int:
    """Return a place from low to high that is not inside a token: between two words, else after a line, else `high`."""
    for pattern in (_BETWEEN_WORDS, _AFTER_LINE):
        places = [match.start() for match in pattern.finditer(text, low, high)]
        if places:
            return places[-1]
    return high
