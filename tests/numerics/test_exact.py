"""The arithmetic of exact inference beside plain numpy: integers are equal, floats are the same float32."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.numerics import exact
from squeeze.numerics.exact import CHUNK, TOP
from squeeze.numerics.jit import kernel
from squeeze.numerics.tiles import PANEL, pack
from tests.makers.integers import integers


@kernel
def matmul(a, a_scales, weights, w_scales, first, last, add, out, widened, sums, totals):
    exact.matmul(a, a_scales, weights, w_scales, first, last, add, out, widened, sums, totals)


@kernel
def quantise(x, top, out):
    return exact.quantise(x, top, out)


@kernel
def maximum(x):
    return exact.maximum(x)


@kernel
def rms_inverse(x, epsilon):
    return exact.rms_inverse(x, epsilon)


@kernel
def exp_negative(x, out):
    for i in range(x.size):
        out[i] = exact.exp_negative(x[i])


def multiplied(a, a_scales, b, b_scales, out, add=False, ranges=None) -> None:
    """`matmul` over all columns, or over ranges of panels in threads of their own."""
    packed, threads = pack(b), []
    a = np.pad(a, ((0, 0), (0, packed.shape[1] * 2 - a.shape[1])))
    for first, last in ranges or [(0, packed.shape[0])]:
        rows = max(a.shape[0], 4)
        scratch = (np.zeros(CHUNK * PANEL, np.int16), np.zeros(rows * 64, np.int32), np.zeros(rows * 64, np.float32))
        arguments = (a, a_scales, packed, b_scales, first, last, add, out, *scratch)
        threads.append(threading.Thread(target=matmul, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def reference(a, a_scales, b, b_scales) -> np.ndarray:
    """Integer sums over even chunks of at most 512 inputs, added in order in float32, then the two scales."""
    pairs = -(-a.shape[1] // 2)
    step = 2 * -(-pairs // -(-2 * pairs // CHUNK))
    total = None
    for start in range(0, a.shape[1], step):
        part = a[:, start : start + step].astype(np.int64) @ b[:, start : start + step].astype(np.int64).T
        assert np.abs(part).max() < 2**31
        total = part.astype(np.float32) if total is None else total + part.astype(np.float32)
    return total * a_scales[:, None] * b_scales


@pytest.mark.parametrize("kind", ["any", "ends", "tops", "bottoms"])
@pytest.mark.parametrize("rows", range(1, 14))
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 2), (17, 3), (49, 34), (70, 511), (64, 512)])
def test_products_of_one_chunk_are_those_of_integers(rows, outputs, inputs, kind):
    a = integers((rows, inputs), TOP, 1, kind, np.int16)
    b = integers((outputs, inputs), 127, 2, "tops" if kind == "bottoms" else kind, np.int8)
    out = np.full((rows, outputs), np.nan, np.float32)
    multiplied(a, np.ones(rows, np.float32), b, np.ones(outputs, np.float32), out)
    assert np.array_equal(out, (a.astype(np.int64) @ b.astype(np.int64).T).astype(np.float32))


@pytest.mark.parametrize("kind", ["any", "ends", "tops"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 13])
@pytest.mark.parametrize(("outputs", "inputs"), [(33, 513), (20, 576), (16, 1536), (90, 1537), (5, 4099)])
def test_products_of_several_chunks(rows, outputs, inputs, kind):
    a, b = integers((rows, inputs), TOP, 3, kind, np.int16), integers((outputs, inputs), 127, 4, kind, np.int8)
    generator = np.random.default_rng(5)
    a_scales, b_scales = (generator.uniform(1e-6, 1e-2, n).astype(np.float32) for n in (rows, outputs))
    expected, out = reference(a, a_scales, b, b_scales), np.zeros((rows, outputs), np.float32)
    multiplied(a, a_scales, b, b_scales, out)
    assert np.array_equal(out, expected)
    multiplied(a, a_scales, b, b_scales, out, add=True)
    assert np.array_equal(out, expected + expected)


def test_products_do_not_depend_on_rows_beside_them_or_on_threads():
    a, b = integers((13, 1100), TOP, 6, "any", np.int16), integers((150, 1100), 127, 7, "any", np.int8)
    a_scales, b_scales = np.linspace(1, 2, 13, dtype=np.float32), np.linspace(3, 4, 150, dtype=np.float32)
    whole = np.zeros((13, 150), np.float32)
    multiplied(a, a_scales, b, b_scales, whole)
    for rows in (1, 2, 3, 4, 5, 6, 8, 12):
        some = np.zeros((rows, 150), np.float32)
        multiplied(a[-rows:].copy(), a_scales[-rows:], b, b_scales, some)
        assert np.array_equal(some, whole[-rows:])
    for rows in (2, 13):
        for bounds in ([0, 1, 10], [0, 5, 10], [0, 3, 4, 9, 10], [0, 10]):
            parts = np.zeros((rows, 150), np.float32)
            ranges = list(itertools.pairwise(bounds))
            multiplied(a[:rows], a_scales[:rows], b, b_scales, parts, ranges=ranges)
            assert np.array_equal(parts, whole[:rows])


@pytest.mark.parametrize("top", [127, TOP])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 3e4, 1e30])
@pytest.mark.parametrize("count", [1, 2, 7, 64, 577])
def test_quantise(top, scale, count):
    x = (np.random.default_rng(count).standard_normal(count) * scale).astype(np.float32)
    out = np.zeros(count, np.int16)
    found = quantise(x, top, out)
    largest = max(np.abs(x).max(), np.float32(1e-20))
    expected = np.rint(x * (np.float32(top) / largest))
    assert np.array_equal(out, expected.astype(np.int16)) and found == largest / np.float32(top)
    if scale > 1e-20:
        assert np.abs(out).max() == top
        assert np.abs(out * np.float64(found) - x).max() <= 0.51 * found


def test_quantise_rounds_half_to_even_and_knows_zero():
    out = np.zeros(6, np.int8)
    assert quantise(np.array([127, 0.5, 1.5, 2.5, -0.5, -3.5], np.float32), 127, out) == 1
    assert out.tolist() == [127, 0, 2, 2, 0, -4]
    assert quantise(np.array([0, -0.0, 0, 0, 0, 0], np.float32), 127, out) > 0 and not out.any()
    quantise(np.array([-5, 5, 0, 1e-9, 2, -2], np.float32), 127, out)
    assert out.tolist() == [-127, 127, 0, 0, 51, -51]


@settings(max_examples=200)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_maximum(values):
    x = np.array(values, np.float32)
    assert maximum(x) == x.max()


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e4, 1e15])
@pytest.mark.parametrize("count", [1, 3, 64, 576, 5000])
def test_root_of_the_mean_square(scale, count):
    """Of integers of 21 bits, so within 2^-21 of the largest at worst, and 2^-23 for rounding."""
    generator = np.random.default_rng(count)
    for values in (generator.standard_normal(count), generator.standard_normal(count) ** 9, np.full(count, 0.3)):
        x = (values * scale).astype(np.float32)
        expected = 1 / np.sqrt((x.astype(np.float64) ** 2).mean() + 1e-5)
        assert rms_inverse(x, np.float32(1e-5)) == pytest.approx(expected, rel=1e-6)
        assert rms_inverse(x[::-1].copy(), np.float32(1e-5)) == rms_inverse(x, np.float32(1e-5))
    assert rms_inverse(np.zeros(count, np.float32), np.float32(1e-5)) == pytest.approx(1e5**0.5, rel=1e-6)


def test_exp():
    """The error is that of a polynomial, 2e-7, and of x / ln 2 as a float32: 2e-7 times |x|."""
    x = np.concatenate([-np.linspace(0, 87, 300_001), -np.logspace(-9, 1.9, 50_000)]).astype(np.float32)
    out = np.zeros(x.size, np.float32)
    exp_negative(x, out)
    expected = np.exp(x.astype(np.float64))
    assert (np.abs(out / expected - 1) / np.maximum(1, np.abs(x))).max() < 2.5e-7
    assert out[0] == 1 and out.max() == 1 and out.min() > 0
    far = np.array([-87, -88, -1e3, -1e30, -np.inf, -0.0], np.float32)
    out = np.zeros(far.size, np.float32)
    exp_negative(far, out)
    assert (out[:5] == out[0]).all() and out[5] == 1
    assert 1e-38 < out[0] < 2e-38
