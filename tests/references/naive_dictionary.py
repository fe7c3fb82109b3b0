"""Read dictionaries without text by sections 7.1, 13.1 and 13.3 of docs/format.md, in numpy.

It is written from the text alone.
"""

import json
from typing import NamedTuple

import numpy as np

from tests.references import naive_levels, naive_recurrent
from tests.references.naive_bytewise import Coder, learn_map

F = np.float32


class Known(NamedTuple):
    """The content of a dictionary: differences from fresh models, and weights above 0.03."""

    visits: dict  # of a weight set
    weights: dict
    apms: dict  # the high 12 bits of each entry
    maps: list  # pairs: the high 12 bits of each entry, and the counts
    finals: np.ndarray


def matrix(coded, rows, columns):
    """Decode a matrix, int64 [rows, columns]."""
    entries, coder, values = {}, Coder(coded), np.zeros((rows, columns), np.int64)

    def bit(*context):
        own = entries.setdefault(context, [1 << 31])
        decoded = coder.decode(max(own[0] >> 10, 1) << 10)
        learn_map(own, 0, decoded, 250)
        return decoded

    before = [0] * columns
    for r in range(rows):
        left, digits = 0, []
        for c in range(columns):
            around, d = (min(left, 7), min(before[c], 7)), 0
            while d < 40 and bit("digits", *around, d):
                d += 1
            if d:
                negative, magnitude = bit("sign", d), 1
                for k in range(d - 1):
                    magnitude = 2 * magnitude + (bit("leading", d, magnitude) if k < 2 else coder.decode(1 << 31))
                values[r, c] = -magnitude if negative else magnitude
            digits.append(d)
            left = d
        before = digits
    return values


def read(data, inputs, logits, maps, decoded=matrix):
    """Return what a dictionary's file contains, and its integer change of the network, if any.

    Args:
        data: bytes of the file
        inputs: number of inputs of the first layer
        logits: number of inputs of the last layer
        maps: number of entries of each adaptive map
        decoded: function that decodes matrices, as those of a network are large
    """
    assert data[:4] == b"\xf5SP\x01"
    length, shift, at = 0, 0, 4
    while True:
        length |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            break
    header = json.loads(data[at : at + length])
    at += length
    parts = []
    for size in header["parts"]:
        parts.append(data[at : at + size])
        at += size
    assert at == len(data) - 8
    assert (header["text"], parts.pop(0)) == (0, b"")
    sizes = [(1, header["rows"])] * 2 + [(header["rows"], inputs), (1, header["apm_rows"]), (header["apm_rows"], 33)]
    sizes += [(n // 256, 256) for n in maps for _ in range(2)] + [(2752, logits)]
    of_network = list(naive_recurrent.change_shapes().values()) if header["changes_network"] else []
    matrices = [decoded(part, *size) for part, size in zip(parts, sizes + of_network, strict=True)]
    return known(matrices[: len(sizes)]), matrices[len(sizes) :]


def read_tensors(file):
    """Return what a file of the format itself contains (7.1)."""
    tensors = naive_levels.planes(file)
    return known([tensors[f"matrix.{k:02}"].astype(np.int64) for k in range(len(tensors))])


def known(matrices):
    """Return the content of the matrices, in their order."""
    rows, visits, weights, apm_rows, apms, *maps, finals = matrices
    rows, apm_rows = (np.cumsum(gaps[0]) - 1 for gaps in (rows, apm_rows))
    weights[1:] += weights[0]
    return Known(
        visits=dict(zip(rows.tolist(), visits[0].tolist(), strict=True)),
        weights=dict(zip(rows.tolist(), weights.astype(F) * F(1 / 64), strict=True)),
        apms=dict(zip(apm_rows.tolist(), apms, strict=True)),
        maps=[(high.ravel(), count.ravel()) for high, count in zip(maps[::2], maps[1::2], strict=True)],
        finals=finals.astype(F) * F(1 / 1024),
    )
