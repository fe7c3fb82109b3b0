"""Make copies of files with a few random faults."""

import numpy as np


def mutate(data: bytes, generator: np.random.Generator) -> bytes:
    out = bytearray(data)
    for _ in range(generator.integers(1, 4)):
        at = int(generator.integers(0, len(out)))
        match generator.integers(0, 7):
            case 0:
                out[at] ^= 1 << int(generator.integers(0, 8))
            case 1:
                out[at] = int(generator.integers(0, 256))
            case 2:
                del out[at : at + int(generator.integers(1, 20))]
            case 3:
                out[at:at] = generator.integers(0, 256, int(generator.integers(1, 20)), dtype=np.uint8).tobytes()
            case 4:
                out[at : at + 9] = b"\xff" * 9
            case 5:
                del out[max(1, at) :]
            case 6:
                other = int(generator.integers(0, len(out)))
                out[at : at + 16] = out[other : other + 16]
        if not out:
            return b"\x00"
    return bytes(out)
