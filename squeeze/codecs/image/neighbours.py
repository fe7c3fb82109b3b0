"""The neighbours of a sample, and the linear predictions by them.

Letters are places: W is to the left, N above, NNE two above and one to the right.
"""

import re

import numpy as np

__all__ = ["AROUND", "FIRST", "LATER", "LINEAR", "ONE"]

# Columns to the left and rows up of each neighbour.
PLACES = {
    **{"W": (1, 0), "WW": (2, 0), "WWW": (3, 0), "N": (0, 1), "NN": (0, 2), "NNN": (0, 3), "NW": (1, 1)},
    **{"NE": (-1, 1), "NWW": (2, 1), "NEE": (-2, 1), "NNW": (1, 2), "NNE": (-1, 2), "NNWW": (2, 2)},
    **{"NNEE": (-2, 2), "NWWW": (3, 1), "NEEE": (-3, 1), "NNNW": (1, 3), "NNNE": (-1, 3), "WWWW": (4, 0)},
}
AROUND = np.array(list(PLACES.values()), np.int64)
ONE = 12  # denominator of the factors

# Of the first plane of a pixel: by its own neighbours.
_FIRST = """W+N-NW  N+NE-NNE  W  N  W/2+N/2+NE/4-NW/4  W+NE-N  W/2+NE/2  2W-WW  2N-NN  W+NW-NWW  N+NW-NNW  W/2+N/2
W/2+NEE/2  W/4+N/4+NE/4+NW/4  3W-3WW+WWW  3N-3NN+NNN  NE  NW  NEE  NE+NW-NN  3W/4+3N/4-NW/2  W+NE/2-N/2
2NW-NNWW  2NE-NNEE  2W+NW-WW-2NWW+NWWW  N+W-WW  NN  WW"""
# Of later planes: by how their neighbours differ from the plane before, from the one before that, and by their own.
_BY_LAST = """W+N-NW  N+NE-NNE  W  N  W/2+N/2+NE/4-NW/4  W+NE-N  W/2+NE/2  2W-WW  2N-NN  W+NW-NWW  W/2+N/2  NW  NE
W/4+N/4+NE/4+NW/4  3N-3NN+NNN"""
_BY_FIRST = "W  N  W+N-NW  W/2+N/2  N+NE-NNE"
_BY_OWN = "W+N-NW  N+NE-NNE  W  N  W+NE-N  2W-WW  2N-NN  W/2+N/2"


def _factors(text: str) -> np.ndarray:
    """Return int64 [predictions, neighbours], the factors of each prediction in twelfths."""
    names, rows = list(PLACES), []
    for prediction in text.split():
        row = np.zeros(len(names), np.int64)
        for sign, factor, name, part in re.findall(r"([+-]?)(\d?)([NEW]+)(?:/(\d))?", prediction):
            row[names.index(name)] += (-1 if sign == "-" else 1) * int(factor or 1) * ONE // int(part or 1)
        rows.append(row)
    return np.array(rows)


FIRST = _factors(_FIRST)
LATER = tuple(_factors(text) for text in (_BY_LAST, _BY_FIRST, _BY_OWN))
LINEAR = len(FIRST)
assert sum(map(len, LATER)) == LINEAR
