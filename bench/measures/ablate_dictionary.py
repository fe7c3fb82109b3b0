"""What each part of a trained dictionary brings on small records that it never saw: bytes and time without it.

Records are those of priors.py, and so is what dictionaries are trained on; nothing is measured that they saw. Bytes are
means of what is coded, without the headers around it. The round trip of every record is checked with nothing left out.
"""

import argparse
from collections.abc import Iterator

import numpy as np

import squeeze
from bench.entry import Row
from bench.measures.ablate import coded, of_dictionary
from bench.measures.priors import sets


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for name, train, records in sets(options.sets.split(","), options.train, options.records):
        known = squeeze.train(train, level=options.level)
        pieces = [np.frombuffer(record, np.uint8) for record in records]
        of_all = {"set": name, "records": len(pieces), "raw": round(sum(map(len, pieces)) / len(pieces), 1)}
        whole: tuple[int, float] | None = None
        for variant in of_dictionary(known):
            size, seconds = coded(pieces, variant, known.content, prove=whole is None)
            whole = whole or (size, seconds)
            row: Row = {
                **of_all,
                "trained": len(train),
                "level": options.level,
                "without": variant.without,
                "bytes": round(size / len(pieces), 2),
                "saves": round(size / whole[0] - 1, 5),
                "seconds": round(seconds / len(pieces), 5),
                "share": round(1 - seconds / whole[1], 3),
            }
            yield row
