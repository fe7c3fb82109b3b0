"""Arrays of numbers in data: those in the format NPY, and data that are numbers beyond doubt.

A wrong guess costs size, never correctness: what is found is coded as an array only if that makes it smaller.
"""

import re
from collections.abc import Iterator

import numpy as np

from squeeze.codecs.array.layout import FLOAT, MOST_COLUMNS, SIGNED, UNSIGNED, WIDTHS, Layout
from squeeze.codecs.content import Content, Medium, Progress, Region

__all__ = ["Array", "Found", "find"]

Found = tuple[int, int, Layout]  # where an array with its prefix begins and ends, and its layout
_LEAST = 1 << 10  # bytes of the smallest array with a header
_LEAST_RAW = 1 << 13  # bytes of the smallest one without
_LEAST_REST = 64  # bytes after an array that do not pay for a block
_NPY = re.compile(
    rb"\x93NUMPY[\x01-\x03]\0.{2,4}?\{'descr': '([<>])([uif])([248])', 'fortran_order': (False|True), "
    rb"'shape': \(([\d, ]*)\), \}[ ]*\n",
    re.DOTALL,
)
_KINDS = {b"u": UNSIGNED, b"i": SIGNED, b"f": FLOAT}
_WINDOW, _WINDOWS = 1 << 12, 4
_COLUMNS = (1, 2, 3, 4)
_COST, _SAVED = 1.5, 1.0  # bits of a number: what its sign and scale cost, and what prediction must save
_WIDER = 0.03  # bits of a byte by which a number that is a byte wider may be worse
_MORE = 0.1  # bits of a number that another column must save
_STILL = 2.0  # bits of a number, up to which a window says nothing
_FULL = 4  # the first level with the whole model


class Array(Medium):
    """Integers and floats of 16, 32 and 64 bits that follow each other, or in columns."""

    block, kind, module = 11, "array", "squeeze.codecs.array.coder"

    def find(self, data: np.ndarray) -> list[Region]:
        return [(start, end, Content(self.kind, 0, form)) for start, end, form in find(data)]

    def sample(self, size: int, content: Content, most: int) -> Region:
        form = Layout(*content.form)
        wanted = max(most // form.row, 1) * form.row
        if size - form.prefix <= wanted:
            return 0, size, content
        start = form.prefix + (size - form.prefix - wanted) // 2 // form.row * form.row
        return start, start + wanted, Content(self.kind, 0, form._replace(prefix=0))

    def encode(self, data: np.ndarray, content: Content, level: int, progress: Progress = None) -> bytes | None:
        payload: bytes | None = self.coder().encode(data, Layout(*content.form), level >= _FULL, progress)
        return payload


def find(data: np.ndarray) -> list[Found]:
    """Return the arrays in uint8 `data`, in order and apart from each other."""
    raw, done, apart = data.tobytes(), 0, list[Found]()
    for start, stop, form in list(_named(raw)) or _unnamed(data):
        end = stop if stop + _LEAST_REST < len(raw) else len(raw)
        if start >= done and end - start >= _LEAST:
            apart.append((start, end, form))
            done = end
    return apart


def _named(raw: bytes) -> Iterator[Found]:
    """Yield the arrays in the format NPY."""
    for match in _NPY.finditer(raw):
        shape = [int(number) for number in match[5].replace(b" ", b"").split(b",") if number]
        width, last = int(match[3]), shape[-1] if len(shape) > 1 and match[4] == b"False" else 1
        columns, size = last if 1 <= last <= MOST_COLUMNS else 1, width
        for number in shape:
            size = min(size * number, len(raw))
        form = Layout(width, columns, _KINDS[match[2]], int(match[1] == b">"), match.end() - match.start())
        yield match.start(), min(match.end() + size, len(raw)), form


def _unnamed(data: np.ndarray) -> list[Found]:
    """Return `data` as one array, or nothing if it may be something else."""
    if data.size < _LEAST_RAW:
        return []
    best, least = None, np.inf
    for width in WIDTHS:
        for big in (0, 1):
            for kind in (UNSIGNED, SIGNED, FLOAT) if width > 2 else (UNSIGNED, SIGNED):
                for prefix in {0, data.size % width}:
                    form = Layout(width, 1, kind, big, prefix)
                    columns, cost = _cost(data, form)
                    if cost < least:
                        best, least = form._replace(columns=columns), cost
    return [(0, data.size, best)] if best else []


def _cost(data: np.ndarray, form: Layout) -> tuple[int, float]:
    """Return the columns with which prediction leaves least of a byte, and its bits, or infinity if it saves little."""
    step, saved, costs = (data.size - _WINDOW) // _WINDOWS, list[np.ndarray](), list[np.ndarray]()
    for k in range(_WINDOWS):
        start = form.prefix + k * step // form.row * form.row
        part = data[start : start + (_WINDOW - 8) // form.width * form.width]
        plain = _entropy(part.reshape(-1, form.width))
        if plain > _STILL:
            costs.append(_costs(part, form))
            saved.append(plain - costs[-1])
            if saved[-1].max() < _SAVED:
                return 1, np.inf
    if len(saved) < _WINDOWS // 2:
        return 1, np.inf
    means = np.where(np.min(saved, 0) >= _SAVED, np.mean(costs, 0) + _MORE * np.arange(len(_COLUMNS)), np.inf)
    column = int(means.argmin())
    return _COLUMNS[column], float(means[column]) / form.width - _WIDER * form.width


def _costs(part: np.ndarray, form: Layout) -> np.ndarray:
    """Return about the bits of a number that a prediction from the same column leaves, by the number of columns."""
    order, kind = ">" if form.big else "<", "u" if form.kind == UNSIGNED else "i"
    numbers = np.frombuffer(part.tobytes(), f"{order}{kind}{form.width}")
    if form.kind == FLOAT:
        most = (1 << form.bits - 1) - 1
        numbers = np.where(numbers < 0, numbers ^ numbers.dtype.type(most), numbers)
    values = numbers.astype(np.float64)
    first = [values[columns:] - values[:-columns] for columns in _COLUMNS]
    second = [one[columns:] - one[:-columns] for columns, one in zip(_COLUMNS, first, strict=True)]
    costs = [[np.log2(np.abs(one) + 1).mean() for one in both] for both in zip(first, second, strict=True)]
    least: np.ndarray = np.min(costs, 1)
    return least + _COST


def _entropy(rows: np.ndarray) -> float:
    """Return the bits of a number by the frequencies of its bytes at each place."""
    total = 0.0
    for column in rows.T:
        counts = np.bincount(column, minlength=256)
        counts = counts[counts > 0]
        shares = counts / len(column)
        total += -(shares * np.log2(shares)).sum() + (counts.size - 1) / (2 * len(column) * np.log(2))
    return float(total)
