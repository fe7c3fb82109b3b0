"""Sizes with each part of the tokenwise mixing left out, from one run of the language model.

Every part is left out of the preset: what is measured is always the present code.
"""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import patch

from bench.entry import Row
from bench.shared.texts import read
from squeeze.codecs import presets
from squeeze.codecs.bitmodels import contexts
from squeeze.codecs.stream import levels
from squeeze.codecs.tokenwise import bias, lanes, prefill
from squeeze.codecs.tokenwise.arrays import APM, SET
from squeeze.codecs.tokenwise.presets import CONTEXTS, TokenPreset
from squeeze.lm import models
from squeeze.lm.language_model import LanguageModel

_SET_NAMES = (
    *("byte and token match", "bits of the byte", "the model's confidence and top probability", "latest byte"),
    *("longest known order", "column", "latest token", "node of the trie"),
)
_APM_NAMES = ("bits of the byte", "two latest bytes", "column", "word")
_ORDERS_0_AND_1 = [presets.order(0), presets.order(1)]
_HIGHER = [spec for spec in CONTEXTS if spec not in _ORDERS_0_AND_1]
_GROUPS = {
    "token contexts": [spec for spec in CONTEXTS if spec[0] >= contexts.TOKEN_1],
    "column contexts": [spec for spec in CONTEXTS if spec[0] == presets.LINE and spec != presets.LINES],
    "line above": [presets.LINES],
    "word contexts": [presets.WORDS, presets.PAIRS, presets.GAPS],
    "character classes": [presets.SHAPES],
    "orders 4 and 6": [presets.order(4), presets.order(6)],
    "orders 0 to 3": [presets.order(n) for n in range(4)],
    "all contexts but orders 0 and 1": _HIGHER,
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    data = read(options.file, "alice29.txt", options.measured)
    model = models.find(options.model).network
    preset = levels.LEVELS[9].text.preset(len(data), model.context, 1, options.window)
    whole = None
    for name, coded in sizes(model, data, preset, options.threads, options.only):
        whole = whole or coded
        about = {"file": options.file.name if options.file else "alice29.txt", "of": len(data)}
        yield {**about, "without": name, "bytes": coded, "more": round(coded / whole - 1, 5)}


def _without() -> Iterator[tuple[str, frozenset[str]]]:
    """(what is left out, its names among the parts of the mixing)."""
    yield "token match", frozenset({"input token_match"})
    yield "mix of the bytewise models", frozenset({"input bytewise"})
    yield "the model's refined logit", frozenset({"input refined"})
    yield "contexts of stopping", frozenset({"stops"})
    for field, name in zip(SET._fields, _SET_NAMES, strict=True):
        yield f"weight set: {name}", frozenset({f"set {field}"})
    for kept in (1, 4):
        yield f"weight sets but the first {kept}", frozenset(f"set {field}" for field in SET._fields[kept:])
    refinements = [f"refinement {field}" for field in APM._fields[: APM.model]]
    for part, name in zip(refinements, _APM_NAMES, strict=True):
        yield f"refinement: {name}", frozenset({part})
    yield "all refinements", frozenset(refinements)


def _bytewise(whole: presets.Preset) -> Iterator[tuple[str, presets.Preset]]:
    """(what is left out, the models of bytes without it)."""

    def without(specs: list[tuple[int, int, int]], matches: int = len(whole.matches)) -> presets.Preset:
        rest = tuple(spec for spec in whole.contexts if spec not in specs)
        return replace(whole, contexts=rest, matches=whole.matches[:matches])

    for name, specs in _GROUPS.items():
        yield name, without(specs)
    yield "long byte match", without([], 1)
    yield "all contexts but orders 0 and 1, and the long byte match", without(_HIGHER, 1)


def sizes(
    model: LanguageModel, data: bytes, preset: TokenPreset, threads: int, only: str = ""
) -> Iterator[tuple[str, int]]:
    """(what is left out, coded bytes); first with nothing left out. `only`: those whose name contains it."""
    predictions, kept = prefill.predictions, []

    def keep(*arguments: object) -> Iterator[tuple[int, object]]:
        for item in predictions(*arguments):  # type: ignore[arg-type]
            kept.append(item)
            yield item

    def size(preset: TokenPreset = preset, **replaced: object) -> int:
        with ExitStack() as stack:
            for name, value in replaced.items():
                stack.enter_context(patch.object(lanes, name, value))
            coded = lanes.encode(data, model, preset, threads)
        return len(coded[1]) if coded else len(data)

    yield "nothing", size(predictions=keep)
    if only in "learned output bias":
        with patch.object(bias, "_descend", lambda values, gradient, squares, following: following.fill(0)):
            yield "learned output bias", size()
    again = lambda *_: iter(kept)  # noqa: E731
    for name, bytewise in _bytewise(preset.bytewise):
        if only in name:
            yield name, size(predictions=again, preset=replace(preset, bytewise=bytewise))
    for name, parts in _without():
        if only in name:
            yield name, size(predictions=again, preset=replace(preset, without=parts))
