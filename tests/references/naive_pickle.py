"""Closing of pickles, written from docs/format.md, section 21.19."""

from tests.references.reading import Bytes

_NONE = set(b"(.012}])NdelotubasRQ") | {*range(0x85, 0x8A), *range(0x8F, 0x95), 0x81, 0x97, 0x98}
_BYTES = {ord("K"): 1, 0x80: 1, 0x82: 1, ord("M"): 2, 0x83: 2, ord("J"): 4, 0x84: 4, ord("G"): 8, 0x95: 8}
_SIZES = {ord("U"): 1, ord("C"): 1, 0x8A: 1, 0x8C: 1, ord("T"): 4, ord("B"): 4, ord("X"): 4, 0x8B: 4, 0x8D: 8}
_SIZES |= {0x8E: 8, 0x96: 8}


def close(content: bytes) -> bytes:
    """Return the pickle with a content."""
    file, out, count = Bytes(content), b"", 0
    while file.rest:
        code = file.byte()
        if code in b"qh":
            number = count if code == ord("q") else count - file.varint()
            count += code == ord("q")
            names = b"qr" if code == ord("q") else b"hj"
            out += bytes([names[0], number]) if number < 256 else names[1:] + number.to_bytes(4, "little")
            continue
        out += bytes([code])
        count += code == 0x94
        if code in _BYTES:
            out += file.take(_BYTES[code])
        elif code in _SIZES:
            size = file.take(_SIZES[code])
            out += size + file.take(int.from_bytes(size, "little"))
        elif code in b"ILFSVPci":
            for _ in range(2 if code in b"ci" else 1):
                while (letter := file.take(1)) != b"\n":
                    out += letter
                out += letter
        else:
            assert code in _NONE
    return out
