"""Make files of numbers from seeds: ramps, sorted keys, differences, byte planes, sound, measurements and distances.

Their order-0 entropy is often that of noise, although they are easy to compress.
"""

from collections.abc import Callable, Iterator

import numpy as np

__all__ = ["generate"]

_Maker = Callable[[np.random.Generator, np.dtype, int], bytes]


def generate(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` files as (name, content), of 4 kB to 120 kB, always the same ones."""
    kinds = [(name, dtype, make) for dtypes, makers in _KINDS for dtype in dtypes for name, make in makers.items()]
    for i in range(count):
        name, dtype, maker = kinds[i % len(kinds)]
        chance = np.random.default_rng(i)
        size = int(4000 * 30 ** chance.random())
        yield f"{name} {dtype}, {size} bytes", maker(chance, np.dtype(dtype), size)


def _ramp(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    step = int(chance.integers(1, 300))
    return _integers(np.arange(size // dtype.itemsize, dtype=np.uint64) * np.uint64(step), dtype)


def _sorted(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    top = 2 ** (8 * dtype.itemsize) - 1
    return np.sort(chance.integers(0, top, size // dtype.itemsize, np.uint64, endpoint=True)).astype(dtype).tobytes()


def _differences(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    keys = np.sort(chance.integers(0, 2 ** min(8 * dtype.itemsize, 40), size // dtype.itemsize, np.uint64))
    return _integers(np.diff(keys, prepend=np.uint64(0)), dtype)


def _planes(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    """Return the first bytes of all keys, then the second bytes, and so on."""
    keys = np.frombuffer(_sorted(chance, dtype, size), np.uint8)
    return np.ascontiguousarray(keys.reshape(-1, dtype.itemsize).T).tobytes()


def _structures(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    width = dtype.itemsize + int(chance.integers(4, 40))
    rows = chance.integers(0, 256, (size // width, width), np.uint8)
    counters = _integers(np.arange(rows.shape[0], dtype=np.uint64) * np.uint64(7), dtype)
    rows[:, : dtype.itemsize] = np.frombuffer(counters, np.uint8).reshape(-1, dtype.itemsize)
    return rows.tobytes()


def _walk(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    return np.cumsum(chance.normal(size=size // dtype.itemsize)).astype(dtype).tobytes()


def _rounded(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    values = 20 + np.cumsum(chance.normal(size=size // dtype.itemsize)) / 10
    return values.round(2).astype(dtype).tobytes()


def _sound(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    return _tones(chance, size // dtype.itemsize, dtype).tobytes()


def _stereo(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    count = size // dtype.itemsize // 2
    return np.stack([_tones(chance, count, dtype), _tones(chance, count, dtype)], 1).tobytes()


def _tones(chance: np.random.Generator, count: int, dtype: np.dtype) -> np.ndarray:
    time, loudest = np.arange(count) / 44100, 2.0 ** (8 * dtype.itemsize - 1) - 1
    frequencies, phases = chance.uniform(80, 4000, 5), chance.uniform(0, 6, 5)
    wave = np.sin(2 * np.pi * frequencies * time[:, None] + phases).mean(1) * 0.9 + chance.normal(size=count) / 100
    tones: np.ndarray = (wave.clip(-1, 1) * loudest).astype(dtype)
    return tones


def _picture(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    """Return rows with a longer period than most records have, and noise in the low bits."""
    width = int(chance.integers(600, 1500))
    rows = size // width
    smooth = np.add.outer(np.arange(rows) / 3, np.arange(width) / 5) % 256
    return ((smooth + chance.integers(0, 4, (rows, width))) % 256).astype(dtype).tobytes()


def _triples(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    """Return smooth colours of three bytes."""
    steps = chance.integers(-2, 3, (size // 3, 3))
    return (np.cumsum(steps, 0) % 256).astype(dtype).tobytes()


def _integers(values: np.ndarray, dtype: np.dtype) -> bytes:
    """Return the low bits of uint64 values."""
    low = values & np.uint64(2 ** (8 * dtype.itemsize) - 1)
    return low.astype(dtype).tobytes()


def _distances(chance: np.random.Generator, dtype: np.dtype, size: int) -> bytes:
    """Return the distances between some points, many of which are equal, as padded text."""
    count = int((2 * size / 16) ** 0.5)
    points = chance.normal(0, 0.4, (count, 4)).round(1)[chance.integers(0, count, count)]
    first, second = np.triu_indices(count, 1)
    found = np.abs(points[first] - points[second]).sum(1).astype(dtype)
    return "".join(f"{distance:16.7e}" for distance in found).encode()


_KINDS: tuple[tuple[tuple[str, ...], dict[str, _Maker]], ...] = (
    (
        ("<u2", ">u2", "<u4", ">u4", "<u8", ">u8"),
        {
            **{"ramp": _ramp, "sorted keys": _sorted, "differences": _differences, "planes": _planes},
            **{"counters and noise": _structures},
        },
    ),
    (("<f4", ">f4", "<f8", ">f8"), {"random walk": _walk, "rounded measurements": _rounded}),
    (("<i2", ">i2", "<i4"), {"loud sound": _sound, "stereo sound": _stereo}),
    (("u1",), {"picture": _picture, "triples": _triples}),
    (("f8",), {"text of distances": _distances}),
)
