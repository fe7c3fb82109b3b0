"""Compiled loops of decoding steps on the CPU, for cpu.py: products with packed codes, and rotary embeddings of keys.

All arrays are of one head. weights: float32 [G, ...]. codes: uint8 [blocks, R, bytes]. scales and least (minimums):
bfloat16 as uint16 [blocks, R, groups]. points: float32 codebook [2^width], for small widths the 8 coefficients of its
curve (kv/codes.py), or empty if a code means minimum + scale * code. M[b, r, c] is the decoded matrix.
"""

import numpy as np

from squeeze.numerics.jit import lossy_kernel

__all__ = ["add_dots", "add_rows", "dot_rows", "rotate", "sum_rows"]

_compiled = lossy_kernel(fastmath=True)

# LLVM vectorises the loops below only if shifts are constants and nothing is sliced inside them. A sum of products is a
# function of whole arrays for the same reason.


@_compiled
def _floats(words, block, out):
    """Convert the bfloat16 values of a block, uint16 [blocks, R, groups], to float32 [R, groups]."""
    bits = out.view(np.uint32)
    for r in range(out.shape[0]):
        for k in range(out.shape[1]):
            bits[r, k] = np.uint32(words[block, r, k]) << np.uint32(16)


@_compiled
def _look_up(codes, block, points, out):
    """Decode a block of 8-bit codes by a codebook, as `_unpack` does."""
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[r, j] = points[codes[block, r, j]]


@_compiled
def _unpack(codes, block, width, points, out):
    """Decode a block of packed codes (kv/codes.py) to float32 [R, C], before scale and minimum."""
    rows, count = out.shape
    if width == 8 and points.shape[0]:
        _look_up(codes, block, points, out)
        return
    start, above = 0, width
    out[:] = 0
    for plane in (8, 4, 2, 1):
        if not width & plane:
            continue
        above -= plane
        size = count * plane // 8
        unit = np.float32(1 << above)
        for r in range(rows):
            for j in range(size):
                byte = np.int32(codes[block, r, start + j])
                if plane == 8:
                    out[r, j] = np.float32(byte)
                elif plane == 4:
                    out[r, j] += np.float32(np.int32(byte & 15)) * unit
                    out[r, size + j] += np.float32(np.int32(byte >> 4)) * unit
                elif plane == 2:
                    out[r, j] += np.float32(np.int32(byte & 3)) * unit
                    out[r, size + j] += np.float32(np.int32(byte >> 2 & 3)) * unit
                    out[r, 2 * size + j] += np.float32(np.int32(byte >> 4 & 3)) * unit
                    out[r, 3 * size + j] += np.float32(np.int32(byte >> 6)) * unit
                else:
                    out[r, j] += np.float32(np.int32(byte & 1)) * unit
                    out[r, size + j] += np.float32(np.int32(byte >> 1 & 1)) * unit
                    out[r, 2 * size + j] += np.float32(np.int32(byte >> 2 & 1)) * unit
                    out[r, 3 * size + j] += np.float32(np.int32(byte >> 3 & 1)) * unit
                    out[r, 4 * size + j] += np.float32(np.int32(byte >> 4 & 1)) * unit
                    out[r, 5 * size + j] += np.float32(np.int32(byte >> 5 & 1)) * unit
                    out[r, 6 * size + j] += np.float32(np.int32(byte >> 6 & 1)) * unit
                    out[r, 7 * size + j] += np.float32(np.int32(byte >> 7)) * unit
        start += size
    if points.shape[0]:
        _bend(points, np.float32(2) / np.float32((1 << width) - 1), out)


@_compiled
def _bend(curve, step, out):
    """Map codes, float32 [R, C], to the points of a curve, in place."""
    a, b, c, d, e, f, g, h = curve[0], curve[1], curve[2], curve[3], curve[4], curve[5], curve[6], curve[7]
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            x = out[r, j] * step - np.float32(1)
            y = x * x
            out[r, j] = x * (a + y * (b + y * (c + y * (d + y * (e + y * (f + y * (g + y * h)))))))


@_compiled
def sum_rows(weights, codes, width, scales, least, points, out):
    """Compute out[g, b * C + c] = sum over rows r of weights[g, r] * M[b, r, c]."""
    blocks, rows, size = codes.shape
    count, groups = size * 8 // width, scales.shape[2]
    span = count // groups
    scale, low = np.empty((rows, groups), np.float32), np.empty((rows, groups), np.float32)
    matrix = np.empty((rows, count), np.float32)
    for b in range(blocks):
        _floats(scales, b, scale)
        _floats(least, b, low)
        _unpack(codes, b, width, points, matrix)
        for g in range(weights.shape[0]):
            for k in range(groups):
                first, constant = b * count + k * span, np.float32(0)
                if not points.shape[0]:
                    for r in range(rows):
                        constant += weights[g, r] * low[r, k]
                for c in range(span):
                    out[g, first + c] = constant
                for r in range(rows):
                    factor = weights[g, r] * scale[r, k]
                    for c in range(span):
                        out[g, first + c] += factor * matrix[r, k * span + c]


@_compiled
def _dot(one, other):
    total = np.float32(0)
    for i in range(one.shape[0]):
        total += one[i] * other[i]
    return total


@_compiled
def dot_rows(weights, codes, width, scales, least, points, out):
    """Compute out[g, b * R + r] = sum over columns c of weights[g, c] * M[b, r, c]."""
    blocks, rows, size = codes.shape
    count, groups = size * 8 // width, scales.shape[2]
    span = count // groups
    scale, low = np.empty((rows, groups), np.float32), np.empty((rows, groups), np.float32)
    matrix = np.empty((rows, count), np.float32)
    for b in range(blocks):
        _floats(scales, b, scale)
        _floats(least, b, low)
        _unpack(codes, b, width, points, matrix)
        for g in range(weights.shape[0]):
            for r in range(rows):
                out[g, b * rows + r] = 0
            for k in range(groups):
                mass = np.float32(0)
                if not points.shape[0]:
                    for c in range(k * span, (k + 1) * span):
                        mass += weights[g, c]
                here = weights[g, k * span : (k + 1) * span]
                for r in range(rows):
                    dot = _dot(here, matrix[r, k * span : (k + 1) * span])
                    out[g, b * rows + r] += scale[r, k] * dot + low[r, k] * mass


@_compiled
def add_rows(weights, codes, width, scales, least, points, out):
    """Add to out[g, c] the sum over blocks b and rows r of weights[g, b * R + r] * M[b, r, c]."""
    blocks, rows, size = codes.shape
    count, groups = size * 8 // width, scales.shape[2]
    span = count // groups
    scale, low = np.empty((rows, groups), np.float32), np.empty((rows, groups), np.float32)
    matrix, sums = np.empty((rows, count), np.float32), np.empty(span, np.float32)
    for b in range(blocks):
        _floats(scales, b, scale)
        _floats(least, b, low)
        _unpack(codes, b, width, points, matrix)
        for g in range(weights.shape[0]):
            for k in range(groups):
                constant = np.float32(0)
                for c in range(span):
                    sums[c] = 0
                for r in range(rows):
                    weight = weights[g, b * rows + r]
                    factor = weight * scale[r, k]
                    if not points.shape[0]:
                        constant += weight * low[r, k]
                    for c in range(span):
                        sums[c] += factor * matrix[r, k * span + c]
                for c in range(span):
                    out[g, k * span + c] += sums[c] + constant


@_compiled
def add_dots(weights, codes, width, scales, least, points, out):
    """Add to out[g, r] the sum over blocks b and columns c of weights[g, b * C + c] * M[b, r, c]."""
    blocks, rows, size = codes.shape
    count = size * 8 // width
    here = np.empty((weights.shape[0], rows), np.float32)
    for b in range(blocks):
        piece = np.ascontiguousarray(weights[:, b * count : (b + 1) * count])
        dot_rows(piece, codes[b : b + 1], width, scales[b : b + 1], least[b : b + 1], points, here)
        out += here


@_compiled
def _rotate_pair(x, y, x_mean, y_mean, cos, sin):
    for t in range(x.shape[0]):
        a, b = x[t] + x_mean, y[t] + y_mean
        x[t] = a * cos[t] - b * sin[t]
        y[t] = a * sin[t] + b * cos[t]


@_compiled
def rotate(keys, tokens, mean, cos, sin, first):
    """Add the mean to the first `tokens` columns of keys [D, T], and apply rotary embeddings, in place.

    mean: [D]. cos, sin: [n, positions] of the channels i and n + i; column t is at position first + t.
    """
    pairs, here, there = cos.shape[0], slice(0, tokens), slice(first, first + tokens)
    for i in range(pairs):
        _rotate_pair(keys[i, here], keys[pairs + i, here], mean[i], mean[pairs + i], cos[i, there], sin[i, there])
    for i in range(2 * pairs, keys.shape[0]):
        keys[i, here] += mean[i]
