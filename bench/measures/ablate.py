"""What each part of a level from 4 to 6 brings: sizes without it, and how long coding takes without it.

The models are those of the file's kind of content. The whole level's round trip is checked first. What mixers were
taught fits only the whole models, so what a context or a weight set brings is measured beside mixers that were not.
All that is built in is left out as `--dictionary none` does it: by bare models. With a dictionary,
its parts are left out, and nothing else.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bench.entry import Row
from bench.shared.texts import text
from squeeze.codecs.bitmodels import context_state as state
from squeeze.codecs.deep import coder as deep, presets as deeplevels
from squeeze.codecs.deep.learned import Start
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.stream import blocks, built_in, levels
from squeeze.codecs.stream.container import Content
from squeeze.codecs.stream.dictionary import Dictionary
from squeeze.codecs.stream.dictionary_file import preset_of

_WORDS = (
    state.WORD,
    state.WORD_1,
    state.WORD_2,
    state.WORD_3,
    state.PAIR,
    state.LETTERS,
)
TAUGHT, BUILT_IN = "what mixers were taught", "all that is built in"
_FAMILIES = {  # registers of contexts
    "words": _WORDS,
    "what followed": (state.FOLLOWED,),
    "classes, outlines, lines": (
        state.CLASSES,
        state.OUTLINE,
        state.LINE,
        state.LINE_HEAD,
    ),
    "brackets and tags": (state.BRACKET, state.TAG),
    "records": (state.RECORD,),
    "instructions": (state.OPCODES,),
    "what matches expect": (state.MATCH,),
}


def _is_order(context: deeplevels.Context) -> bool:
    return context in [deeplevels._order(n) for n in range(33)]


def groups(preset: DeepPreset) -> Iterator[tuple[str, list[deeplevels.Context]]]:
    """(name, contexts that belong together)."""
    for least, most in ((0, 2), (3, 5), (6, 32)):
        chosen = [deeplevels._order(n) for n in range(least, most + 1)]
        yield f"orders {least} to {most}", [c for c in preset.contexts if c in chosen]
    bare = (state.NONE, state.POSITION)
    yield "sparse", [c for c in preset.contexts if {c[0], c[2]} <= set(bare) and not _is_order(c)]
    for name, registers in _FAMILIES.items():
        yield name, [c for c in preset.contexts if c[0] in registers or (c[0] in bare and c[2] in registers)]


class Variant(NamedTuple):
    """A level without a part of it."""

    without: str
    preset: DeepPreset
    start: Start | None = None


def of_dictionary(known: Dictionary) -> Iterator[Variant]:
    """A level with a dictionary, without its parts; first with nothing left out."""
    preset, start = preset_of(known.level, known.content), known.start
    yield Variant("nothing", preset, start)
    if start.memory:
        yield Variant("the dictionary's text", preset, start._replace(memory=None))
    yield Variant("what it taught mixers", preset, start._replace(learned=built_in.built_in(preset)))
    if start.network:
        yield Variant("its change of the network", preset, start._replace(network=None))
    yield Variant("the dictionary", preset, built_in.start(preset))


def variants(level: int, kind: str, each: bool) -> Iterator[Variant]:
    """First with nothing left out."""
    preset = deeplevels.preset(level, kind)
    yield Variant("nothing", preset, built_in.start(preset) if preset.taught else None)
    if preset.taught or preset.network:
        alone = levels.bare(levels.level(level)).models(kind)
        assert isinstance(alone, DeepPreset)
        yield Variant(BUILT_IN, alone)
    if preset.taught:
        preset = replace(preset, taught="")
        yield Variant(TAUGHT, preset)
    if preset.network:
        yield Variant("network", replace(preset, network=False))
    yield Variant("matches but two", replace(preset, matches=preset.matches[1::2]))
    yield Variant("weight sets but the first five", replace(preset, selectors=5))
    names = {context: name for name, context in (deeplevels.CONTEXTS[kind] | deeplevels.MORE[kind]).items()}
    parts = [(names.get(c, str(c)), [c]) for c in preset.contexts] if each else groups(preset)
    for name, contexts in parts:
        if contexts:
            yield Variant(name, replace(preset, contexts=tuple(c for c in preset.contexts if c not in contexts)))


def _content(data: np.ndarray) -> Content:
    """What most of the bytes are."""
    return max(blocks.regions(data), key=lambda region: region[1] - region[0])[2]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    path = text(options.file, "enwik8.1m")
    data = np.frombuffer(path.read_bytes()[: options.bytes], np.uint8)
    known = Dictionary.read(options.dictionary) if options.dictionary else None
    level, content = (known.level, known.content) if known else (options.level, _content(data))
    whole: tuple[int, float] | None = None
    for variant in of_dictionary(known) if known else variants(level, content.kind, options.each):
        name = variant.without
        if whole and options.only not in name and name != TAUGHT:
            continue
        size, seconds = coded([data], variant, content, prove=whole is None)
        whole = whole or (size, seconds)
        row: Row = {
            "file": path.name,
            "level": level,
            "of": data.size,
            "without": name,
            "bytes": size,
            "saves": round(size / whole[0] - 1, 5),
            "seconds": round(seconds, 2),
            "share": round(1 - seconds / whole[1], 3),
        }
        if name == TAUGHT:
            whole = size, seconds
        yield row | ({"dictionary": known.identity[:8]} if known else {})


def coded(pieces: Sequence[np.ndarray], variant: Variant, content: Content, prove: bool) -> tuple[int, float]:
    """Bytes of all pieces, each coded by itself, and seconds of processor time. prove: decode and compare."""
    _, preset, known = variant
    deep.encode(pieces[0][:1000], preset, content.record, start=known)  # compiles
    size, seconds = 0, 0.0
    for piece in pieces:
        start = time.process_time()
        found = deep.encode(piece, preset, content.record, start=known)
        seconds += time.process_time() - start
        size += piece.size if found is None else len(found)
        if prove and found is not None:
            again = deep.decode(found, piece.size, preset, content.record, start=known)
            if not np.array_equal(again, piece):
                raise SystemExit("Error: the round trip changed the bytes")
    return size, seconds
