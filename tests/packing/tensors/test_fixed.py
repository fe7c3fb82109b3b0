"""Codes of fixed length: exact on every bit pattern, the same bytes on every processor, as docs/format.md says."""

import os
import subprocess
import sys

import numpy as np
import pytest

from squeeze.errors import DamagedError
from squeeze.packing.tensors import fixed, floats
from tests.makers.cases import all_slow_but
from tests.makers.floats import as_bf16, bytes_of, weights

NORMAL = weights(70_000)
BITS = {"BF16": (16, 8), "F16": (16, 5), "F32": (32, 8), "F8_E4M3": (8, 4), "F8_E5M2": (8, 5)}


def tensor(dtype, values=NORMAL):
    if dtype == "BF16":
        return bytes_of(as_bf16(values))
    if dtype.startswith("F8"):
        return bytes_of((values * 40).astype(np.float16).view(np.uint16).astype(">u2").view(np.uint8)[::2])
    return bytes_of(values.astype({"F16": np.float16, "F32": np.float32}[dtype]))


@pytest.mark.parametrize("dtype", fixed.DTYPES)
@pytest.mark.parametrize("size", all_slow_but([700, 65_536, 65_537], [700, 1024, 65_535, 65_536, 65_537, 70_000]))
def test_tensors_are_restored(dtype, size):
    data = tensor(dtype, NORMAL[:size])
    coded = fixed.encode(data, dtype)
    if coded is None:
        assert dtype.startswith("F8") and size < 2000
        return
    assert coded.size < data.size and coded.size % 8 == 0
    assert np.array_equal(fixed.decode(coded, dtype, data.size), data)


@pytest.mark.parametrize("dtype", fixed.DTYPES)
def test_every_bit_pattern_is_restored(dtype):
    width = BITS[dtype][0] // 8
    patterns = np.arange(1 << min(8 * width, 16)).astype(f"<u{width}") << (8 * width - min(8 * width, 16))
    data = np.concatenate([bytes_of(patterns), *[tensor(dtype)] * 4])
    assert np.array_equal(fixed.decode(fixed.encode(data, dtype), dtype, data.size), data)


def test_a_tensor_that_does_not_get_shorter_is_not_coded():
    noise = np.random.default_rng(0).integers(0, 256, 200_000, np.uint8)
    assert all(fixed.encode(noise, dtype) is None for dtype in fixed.DTYPES)
    assert all(fixed.encode(noise[:0], dtype) is None for dtype in fixed.DTYPES)


def test_threads_make_no_difference():
    data = tensor("BF16", np.tile(NORMAL, 12))
    coded = fixed.encode(data, "BF16")
    assert np.array_equal(fixed.encode(data, "BF16", threads=3), coded)
    assert np.array_equal(fixed.decode(coded, "BF16", data.size, threads=3), data)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_little_larger_than_rans(dtype):
    data = tensor(dtype)
    assert fixed.encode(data, dtype).size <= 1.03 * floats.encode(data, dtype).size


def by_the_format(payload, dtype):
    """Decode as docs/format.md says, value by value."""
    width, prefix_bits = BITS[dtype]
    count = int.from_bytes(payload[8:16], "little")
    blocks = -(-count // 65536)
    names = payload[16 : 16 + 12 * blocks].reshape(blocks, 4, 3)
    counts = payload[16 + 12 * blocks : 16 + 28 * blocks].view("<u4").reshape(blocks, 4)
    place, values = 16 + 28 * blocks, []

    def bits(at):
        word = int.from_bytes(payload[at : at + 4], "little")
        return [word >> i & 1 for i in range(32)]

    for block in range(blocks):
        sizes = [min(count - 65536 * block, 65536), *map(int, counts[block])]
        loose, lower, codes = [], [], []
        for _ in range(-(-sizes[0] // 32)):
            codes += [low + 2 * high for low, high in zip(bits(place), bits(place + 4), strict=True)]
            place += 8
            masks = [bits(place + 4 * i) for i in range(8 - prefix_bits)]
            loose += [int("0" + "".join(map(str, found)), 2) for found in zip(*masks, strict=True)] or [0] * 32
            place += 4 * (8 - prefix_bits)
            planes = payload[place : place + 4 * (width - 8)].reshape(-1, 32)
            lower += [int.from_bytes(bytes(planes[:, i]), "big") for i in range(32)]
            place += planes.size
        levels = [codes]
        for size in sizes[1:4]:
            codes = []
            for _ in range(-(-size // 32)):
                codes += [low + 2 * high for low, high in zip(bits(place), bits(place + 4), strict=True)]
                place += 8
            levels.append(codes)
        known = list(payload[place : place + sizes[4]])
        place += -(-sizes[4] // 4) * 4
        for level in (3, 2, 1, 0):
            left = iter(known)
            known = [next(left) if code == 3 else names[block, level, code] for code in levels[level][: sizes[level]]]
            assert next(left, None) is None
        for i, prefix in enumerate(known):
            rotated = int(prefix) << (width - prefix_bits) | loose[i] << (width - 8) | lower[i]
            values.append(rotated >> 1 | (rotated & 1) << (width - 1))
    assert payload.size == -(-place // 8) * 8
    return np.array(values, f"<u{width // 8}").view(np.uint8)


@pytest.mark.parametrize("dtype", fixed.DTYPES)
def test_a_decoder_written_from_the_format_decodes(dtype):
    data = tensor(dtype)
    assert np.array_equal(by_the_format(fixed.encode(data, dtype), dtype), data)


OTHER = """
import sys, numpy as np
from squeeze.packing.tensors import fixed
data, coded = (np.frombuffer(open(path, "rb").read(), np.uint8) for path in sys.argv[2:])
assert np.array_equal(fixed.encode(data, sys.argv[1]), coded)
assert np.array_equal(fixed.decode(coded.copy(), sys.argv[1], data.size), data)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", fixed.DTYPES)
def test_the_same_bytes_on_a_plainer_processor(dtype, tmp_path):
    data = tensor(dtype)
    (tmp_path / "data").write_bytes(data.tobytes())
    (tmp_path / "coded").write_bytes(fixed.encode(data, dtype).tobytes())
    command = [sys.executable, "-c", OTHER, dtype, str(tmp_path / "data"), str(tmp_path / "coded")]
    environment = os.environ | {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run(command, check=True, env=environment, timeout=300)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_damage_is_noticed_or_harmless(dtype):
    data, generator = tensor(dtype), np.random.default_rng(7)
    coded = fixed.encode(data, dtype)
    for size in (0, 8, 16, 40, coded.size - 8):
        with pytest.raises(DamagedError):
            fixed.decode(coded[:size], dtype, data.size)
    with pytest.raises(DamagedError):
        fixed.decode(coded, dtype, data.size - 2)
    for _ in range(300):
        hurt = coded.copy()
        place = generator.integers(0, hurt.size if generator.random() < 0.5 else 100)
        hurt[place] ^= 1 << generator.integers(0, 8)
        try:
            assert fixed.decode(hurt, dtype, data.size).size == data.size
        except DamagedError as error:
            assert "\n" not in str(error)
