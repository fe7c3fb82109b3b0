"""Numbers without a header: data whose bytes are an array beyond doubt.

Windows of the data are read as numbers in each way. The one is taken whose numbers are predicted best by those before.
"""

import numpy as np

from squeeze.codecs.array import decimals, grids
from squeeze.codecs.array.layout import FLOAT, SIGNED, UNSIGNED, WIDTHS, Layout

__all__ = ["find_raw"]

_LEAST = 1 << 13  # bytes of the smallest array without a header
_WINDOW, _WINDOWS = 1 << 12, 4
_COLUMNS = (1, 2, 3, 4)
_COST, _SAVED = 1.5, 1.0  # bits of a number: what its sign and scale cost, and what prediction must save
_WIDER = 0.03  # bits of a byte by which a number that is a byte wider may be worse
_MORE = 0.1  # bits of a number that another column must save
_DISTINCT = 32  # different numbers of a sample of decimals
_STILL = 2.0  # bits of a number, up to which a window says nothing


def find_raw(data: np.ndarray) -> Layout | None:
    """Return the layout of uint8 `data` as one array, or None if it may be something else."""
    if data.size < _LEAST:
        return None
    if form := _decimals(data):
        return form
    best, least = None, np.inf
    for width in WIDTHS:
        for big in (0, 1):
            for kind in (UNSIGNED, SIGNED, FLOAT) if width > 2 else (UNSIGNED, SIGNED):
                for prefix in {0, data.size % width}:
                    form = Layout(width, 1, kind, big, prefix)
                    columns, cost = _cost(data, form)
                    if cost < least:
                        best, least = form._replace(columns=columns), cost
    if best is None:
        return None
    body = data[best.prefix : data.size - (data.size - best.prefix) % best.width]
    return best._replace(across=grids.line_of(_numbers(body, best), best.columns))


def _decimals(data: np.ndarray) -> Layout | None:
    """Return the layout of data that is floats of few decimal digits, or None."""
    for width in (8, 4):
        for prefix in sorted({0, data.size % width}):
            for big in (0, 1):
                form = Layout(width, 1, FLOAT, big, prefix)
                step = (data.size - prefix - _WINDOW) // (_WINDOWS * width) * width
                parts = [data[prefix + k * step :][:_WINDOW] for k in range(_WINDOWS)]
                numbers = [decimals.whole_numbers(part, form) for part in parts]
                known = [part for part in numbers if part is not None]
                if len(known) < _WINDOWS or not _tell(np.concatenate(known)):
                    continue
                costs = np.mean([_costs(part) for part in known], 0) + _MORE * np.arange(len(_COLUMNS))
                return form._replace(columns=_COLUMNS[int(costs.argmin())])
    return None


def _tell(numbers: np.ndarray) -> bool:
    """Return whether decimals differ enough for it to be no chance that they are."""
    return bool(np.count_nonzero(numbers) > numbers.size / 2 and np.unique(numbers).size >= _DISTINCT)


def _cost(data: np.ndarray, form: Layout) -> tuple[int, float]:
    """Return the columns with which prediction leaves least of a byte, and its bits, or infinity if it saves little."""
    step, saved, costs = (data.size - _WINDOW) // _WINDOWS, list[np.ndarray](), list[np.ndarray]()
    for k in range(_WINDOWS):
        start = form.prefix + k * step // form.row * form.row
        part = data[start : start + (_WINDOW - 8) // form.width * form.width]
        plain = _entropy(part.reshape(-1, form.width))
        if plain > _STILL:
            costs.append(_costs(_numbers(part, form)))
            saved.append(plain - costs[-1])
            if saved[-1].max() < _SAVED:
                return 1, np.inf
    if len(saved) < _WINDOWS // 2:
        return 1, np.inf
    means = np.where(np.min(saved, 0) >= _SAVED, np.mean(costs, 0) + _MORE * np.arange(len(_COLUMNS)), np.inf)
    column = int(means.argmin())
    return _COLUMNS[column], float(means[column]) / form.width - _WIDER * form.width


def _costs(values: np.ndarray) -> np.ndarray:
    """Return about the bits of a number that a prediction from the same column leaves, by the number of columns."""
    first = [values[columns:] - values[:-columns] for columns in _COLUMNS]
    second = [one[columns:] - one[:-columns] for columns, one in zip(_COLUMNS, first, strict=True)]
    costs = [[np.log2(np.abs(one) + 1).mean() for one in both] for both in zip(first, second, strict=True)]
    least: np.ndarray = np.min(costs, 1)
    return least + _COST


def _numbers(part: np.ndarray, form: Layout) -> np.ndarray:
    """Return float64 numbers in the order of what they stand for."""
    order, kind = ">" if form.big else "<", "u" if form.kind == UNSIGNED else "i"
    numbers = np.frombuffer(part.tobytes(), f"{order}{kind}{form.width}")
    if form.kind == FLOAT:
        most = (1 << form.bits - 1) - 1
        numbers = np.where(numbers < 0, numbers ^ numbers.dtype.type(most), numbers)
    return numbers.astype(np.float64)


def _entropy(rows: np.ndarray) -> float:
    """Return the bits of a number by the frequencies of its bytes at each place."""
    total = 0.0
    for column in rows.T:
        counts = np.bincount(column, minlength=256)
        counts = counts[counts > 0]
        shares = counts / len(column)
        total += -(shares * np.log2(shares)).sum() + (counts.size - 1) / (2 * len(column) * np.log(2))
    return float(total)
