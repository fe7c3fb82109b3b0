"""What explaining a file costs beyond compressing it, and how near its sum of bits is to the coded blocks.

Compressing is with its proof, as the command does it; explaining takes as many passes, of which the second measures,
and writes the page. Both run in this process, warmed up, on one thread, in processor time.
"""

import argparse
from collections.abc import Iterator

import squeeze
from bench.entry import Row
from bench.measures.speed import processor_seconds
from bench.shared.texts import read

_WARM = 4096  # bytes


def rows(options: argparse.Namespace) -> Iterator[Row]:
    data = read(options.file, "enwik8.1m", options.bytes)
    name = options.file.name if options.file else "enwik8.1m"
    for level in map(int, options.levels.split(",")):
        squeeze.compress(data[:_WARM], level, threads=1)
        squeeze.explain(data[:_WARM], level, threads=1).to_html()
        started = processor_seconds()
        squeeze.compress(data, level, threads=1)
        compressed = processor_seconds()
        explanation = squeeze.explain(data, level, threads=1)
        explained = processor_seconds()
        page = explanation.to_html()
        drawn = processor_seconds()
        payload = sum(block.payload for block in explanation.blocks)
        yield {
            "file": name,
            "level": level,
            "raw": len(data),
            "compress seconds": round(compressed - started, 2),
            "explain seconds": round(explained - compressed, 2),
            "page seconds": round(drawn - explained, 2),
            "beyond compressing": round((drawn - compressed) / (compressed - started) - 1, 4),
            "page bytes": len(page.encode()),
            "sum of bits": round(explanation.bits / 8 / payload - 1, 7),
        }
