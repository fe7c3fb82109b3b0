"""Lines of grids, such as images, maps and fields: by the shape of an array, or found in its numbers."""

import numpy as np

from squeeze.codecs.array.layout import MOST_ACROSS, MOST_COLUMNS

__all__ = ["line_of", "of_shape"]

_SAMPLE = 1 << 17  # numbers in which lines are looked for
_LEAST_LINES = 4  # lines of a sample
_SHORTEST = 8  # numbers of a line, above the columns that are tried
_ALIKE = 0.1  # correlation of differences a line apart, at least
_SAVED = 0.25  # bits of a number that the line above must save


def of_shape(shape: list[int]) -> tuple[int, int]:
    """Return the columns and the numbers of a line, or 0, of an array whose last axis is the fastest."""
    if len(shape) < 2:
        return 1, 0
    columns = shape[-1] if 1 <= shape[-1] <= MOST_COLUMNS else 1
    if columns > 1 or shape[-1] == 1:
        across = columns * shape[-2] if len(shape) > 2 else 0
    else:
        across = shape[-1]
    return columns, across if columns < across <= MOST_ACROSS else 0


def line_of(numbers: np.ndarray, columns: int) -> int:
    """Return the numbers of a line that lead to better predictions than the column alone, or 0.

    Differences in a line resemble those above them, so they correlate at the distance of a line.

    Args:
        numbers: float64 [n].
        columns: numbers of a row.
    """
    sample = numbers[:_SAMPLE]
    changes = sample[columns:] - sample[:-columns]
    if changes.size < _LEAST_LINES * _SHORTEST:
        return 0
    limit = 4 * np.median(np.abs(changes))
    changes = np.clip(changes, -limit, limit)
    changes -= changes.mean()
    power = np.abs(np.fft.rfft(changes, 2 * changes.size)) ** 2
    most = changes.size // _LEAST_LINES
    alike = np.fft.irfft(power)[:most]
    if alike[0] <= 0:
        return 0
    alike /= alike[0]
    alike[: max(_SHORTEST, 4 * columns)] = 0
    line = int(alike.argmax())
    if alike[line] < _ALIKE or line % columns:
        return 0
    predicted = sample[:-line][columns:] + sample[line:-columns] - sample[: -line - columns]
    rest = sample[line + columns :]
    by_line = np.log2(np.abs(rest - predicted) + 1).mean()
    by_column = np.log2(np.abs(rest - sample[line:-columns]) + 1).mean()
    return line if by_line + _SAVED < by_column else 0
