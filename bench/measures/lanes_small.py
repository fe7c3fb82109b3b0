"""What lanes cost a small file in size, and bring in speed: tokens a second of the processor, by one thread.

Every file is the start of a text. All of it is encoded; what is decoded and timed is the first bytes alone, in as many
lanes, and it is compared.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import product

from bench.entry import Row
from bench.shared.texts import read
from squeeze.codecs.stream import levels
from squeeze.codecs.tokenwise import lanes
from squeeze.codecs.tokenwise.layout import LaneLayout
from squeeze.codecs.tokenwise.presets import TokenPreset
from squeeze.lm import models
from squeeze.lm.language_model import LanguageModel


def rows(options: argparse.Namespace) -> Iterator[Row]:
    model, text = models.find(options.model).network, levels.LEVELS[options.level].text
    assert text
    sizes, counts = (list(map(int, values.split(","))) for values in (options.sizes, options.lanes))
    data = read(options.file, "lcet10.txt", max(sizes))
    _encoded(model, data[:3_000], options.level, 2)  # loads what is compiled
    one: dict[int, int] = {}
    decoding: dict[tuple[int, int], float] = {}
    for size, count in product(sorted({min(size, len(data)) for size in sizes}), counts):
        coded, encoding = _encoded(model, data[:size], options.level, count)
        decoded = min(size, options.decoded)
        if (decoded, count) not in decoding:
            decoding[decoded, count] = _decoding(model, data[:decoded], options.level, count)
        yield {
            "file": options.file.name if options.file else "lcet10.txt",
            "level": options.level,
            "of": size,
            "lanes": count,
            "chosen": count == text.preset(size, model.context, None, None).lanes,
            "bytes": coded,
            "ratio": round(coded / one.setdefault(size, coded), 5),
            "encode, tokens/s": round(encoding),
            "decode, tokens/s": round(decoding[decoded, count]),
        }


def _encoded(model: LanguageModel, data: bytes, level: int, count: int) -> tuple[int, float]:
    """Bytes, and tokens a second."""
    begin = time.process_time()
    layout, payload = _encode(model, data, level, count)
    return len(layout.to_bytes()) + len(payload), layout.entries / (time.process_time() - begin)


def _encode(model: LanguageModel, data: bytes, level: int, count: int) -> tuple[LaneLayout, bytes]:
    coded = lanes.encode(data, model, _preset(model, data, level, count))
    if coded is None:
        sys.exit("Error: the text becomes no shorter")
    return coded


def _decoding(model: LanguageModel, data: bytes, level: int, count: int) -> float:
    """Tokens a second."""
    layout, payload = _encode(model, data, level, count)
    preset, begin = _preset(model, data, level, count), time.process_time()
    found = lanes.decode(payload, layout, model, preset)
    tokens_per_second = layout.entries / (time.process_time() - begin)
    if found.tobytes() != data:
        sys.exit("Error: what was decoded differs")
    return tokens_per_second


def _preset(model: LanguageModel, data: bytes, level: int, count: int) -> TokenPreset:
    text = levels.LEVELS[level].text
    assert text
    return text.preset(len(data), model.context, count, None)
