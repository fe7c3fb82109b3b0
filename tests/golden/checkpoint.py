"""A checkpoint for golden packed files, computed in integers so that it never changes."""

import json

_PAIRS = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


def _noise(count: int, seed: int) -> list[int]:
    """Return 32-bit numbers of Knuth's linear congruential generator, its upper half."""
    numbers, state = [], seed
    for _ in range(count):
        state = (6364136223846793005 * state + 1442695040888963407) % (1 << 64)
        numbers.append(state >> 32)
    return numbers


def _float(number: int, mantissa_bits: int, middle: int, row: int) -> int:
    """Return a float with a geometric exponent below `middle`, which differs by row, as an unsigned integer."""
    halvings = 0
    while number >> halvings & 1 and halvings < 6:
        halvings += 1
    return (middle + row % 3 - halvings) << mantissa_bits | (number >> 6) & ((1 << mantissa_bits) - 1)


def golden_checkpoint(steps: int = 0, zeros: bool = False) -> bytes:
    """Return a safetensors file with tensors of several types.

    Args:
        steps: largest change of its floats, in units of the last place.
        zeros: set two of every four floats to 0.
    """

    def signed(dtype: str, shape: list[int], width: int, mantissa_bits: int, middle: int, seed: int) -> tuple:
        columns, count = shape[-1], shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = [
            _float(n, mantissa_bits, middle, i // columns) + n % (steps + 1) | n >> 31 << 8 * width - 1
            for i, n in enumerate(_noise(count, seed))
        ]
        if zeros:
            numbers = [0 if i % 4 in _PAIRS[numbers[i // 4 * 4] % 6] else number for i, number in enumerate(numbers)]
        return dtype, shape, width, numbers

    tensors = {
        "bf16": signed("BF16", [48, 96], 2, 7, 120, 1),
        "fp32": signed("F32", [20, 64], 4, 23, 118, 2),
        "fp16": signed("F16", [1500], 2, 10, 14, 3),
        "fp8": signed("F8_E4M3", [40, 40], 1, 3, 9, 4),
        "ids": ("I64", [1, 256], 8, list(range(256))),
        "scalar": ("F32", [], 4, [0x3F800000]),
        "empty": ("BF16", [0, 3], 2, []),
    }
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, width, numbers) in tensors.items():
        data = b"".join(number.to_bytes(width, "little") for number in numbers)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body
