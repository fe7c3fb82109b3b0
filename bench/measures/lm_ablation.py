"""Sizes with each part of the tokenwise mixing left out, from one run of the language model.

A part that is a parameter is left out of the preset. Any other is an edit of the source of tokenwise.py, compiled
apart: what is measured is always the present code.
"""

import argparse
import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from bench.entry import Row
from bench.shared.texts import read
from squeeze.codecs import presets
from squeeze.codecs.bitmodels import contexts
from squeeze.codecs.stream import levels
from squeeze.codecs.tokenwise import bias, lanes, prefill
from squeeze.codecs.tokenwise import model as tokenwise
from squeeze.codecs.tokenwise.presets import CONTEXTS, TokenPreset
from squeeze.lm import models
from squeeze.lm.language_model import LanguageModel
from squeeze.numerics import jit

_ALL_SETS = "for k in range(x.rows.size):\n"
_SET_NAMES = (
    *("byte and token match", "bits of the byte", "the model's sureness and surprise", "latest byte"),
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


def _edits() -> Iterator[tuple[str, list[tuple[str, str, int]]]]:
    """(what is left out, [(text, text in its place, times that it occurs)])."""
    yield "token match", [("    if leaf >= t.low[node]", "    if x.places.size < 0 and leaf >= t.low[node]", 1)]
    yield (
        "mix of the bytewise models",
        [("m.inputs[at + 3] = np.int32(m.scalars[bytewise.LOGIT])", "m.inputs[at + 3] = 0", 1)],
    )
    refined = "STRETCH[mixer.refine(x.apms, x.apm_rows[4], logit) >> 20]"
    yield "the model's refined logit", [(refined, "0", 1)]
    yield "contexts of stopping", [("STRETCH[entry >> 20] if entry & 1023 else 0", "0", 1)]
    for k, name in enumerate(_SET_NAMES[: tokenwise._SETS]):
        skip = f"{_ALL_SETS}        if k == {k}:\n            continue\n"
        yield f"weight set: {name}", [(_ALL_SETS, skip, 2), ("FINE_ONE // _SETS", "FINE_ONE // (_SETS - 1)", 1)]
    for kept in (1, 4):
        first = f"for k in range({kept}):\n"
        share = ("FINE_ONE // _SETS", f"FINE_ONE // {kept}", 1)
        yield f"weight sets but the first {kept}", [(_ALL_SETS, first, 2), share]
    for k, name in enumerate(_APM_NAMES):
        yield f"refinement: {name}", [(f"mixer.refine(x.apms, x.apm_rows[{k}], mixed)", "probability", 1)]
    yield "all refinements", [("min(max(refined >> 3, 1)", "min(max(probability, 1)", 1)]


def _bytewise(whole: presets.Preset) -> Iterator[tuple[str, presets.Preset]]:
    """(what is left out, the models of bytes without it)."""

    def without(specs: list[tuple[int, int, int]], matches: int = len(whole.matches)) -> presets.Preset:
        rest = tuple(spec for spec in whole.contexts if spec not in specs)
        return replace(whole, contexts=rest, matches=whole.matches[:matches])

    for name, specs in _GROUPS.items():
        yield name, without(specs)
    yield "long byte match", without([], 1)
    yield "all contexts but orders 0 and 1, and the long byte match", without(_HIGHER, 1)


def _edited(edits: list[tuple[str, str, int]], folder: Path, number: int) -> ModuleType:
    source = Path(tokenwise.__file__).read_text()
    for old, new, times in edits:
        if source.count(old) != times:
            raise SystemExit(
                f"Error: tokenwise.py has changed: bring bench/measures/lm_ablation.py up to date with {old!r}"
            )
        source = source.replace(old, new)
    path = folder / f"tokenwise_{number}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with patch.object(jit, "cache_folder", lambda: folder):
        spec.loader.exec_module(module)
    return module


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
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, edits) in enumerate(_edits()):
            if only in name:
                module = _edited(edits, Path(folder), number)
                yield name, size(predictions=again, tokenwise=module)
