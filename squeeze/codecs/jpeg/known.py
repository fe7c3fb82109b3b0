"""Bytes that many headers of JPEG images have: the tables that ITU-T T.81 gives as examples, names, the curve of sRGB.

The models of a header have read these bytes before it, so that they cost next to nothing in it.
"""

import struct
from fractions import Fraction
from functools import cache

__all__ = ["known_header", "srgb_curve"]

_APP1, _APP13, _APP2 = 0xE1, 0xED, 0xE2
_PACKET = (
    b'http://ns.adobe.com/xap/1.0/\0<?xpacket begin="\xef\xbb\xbf" id="W5M0MpCehiHzreSzNTczkc9d"?>'
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description rdf:about=""'
)
_EXIF = b"Exif\0\0MM\0*\0\0\0\x08", b"Exif\0\0II*\0\x08\0\0\0"  # both orders of bytes
_RESOURCE = b"Photoshop 3.0\08BIM\4\4" + bytes(8)
_PROFILE = (
    b"ICC_PROFILE\0\1\1mntrRGB XYZ acspAPPLMSFTcprtdescwtptbkptrXYZgXYZbXYZrTRCgTRCbTRCdmnddmddvuedviewlumimeastech"
    b"XYZ " + bytes(4) + bytes.fromhex("0000f6d6000100000000d32d")  # the white point D50
)
# Segments with their markers: JFIF; steps of luminance and chrominance; a frame of three components; Huffman tables of
# both, of differences and of others; a scan.
_SEGMENTS = (
    "e04a46494600010100000100010000",
    "db00100b0c0e0c0a100e0d0e1211101318281a181616183123251d283a333d3c3933383740485c4e404457453738506d51575f626768673e"
    "4d71797064785c656763",
    "db011112121815182f1a1a2f634238426363636363636363636363636363636363636363636363636363636363636363636363636363"
    "636363636363636363636363",
    "c0080010001003012200021101031101",
    "c40000010501010101010100000000000000000102030405060708090a0b",
    "c4100002010303020403050504040000017d01020300041105122131410613516107227114328191a1082342b1c11552d1f0243362728209"
    "0a161718191a25262728292a3435363738393a434445464748494a535455565758595a636465666768696a737475767778797a8384858687"
    "88898a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae1e2e3e4e5e6e7e8"
    "e9eaf1f2f3f4f5f6f7f8f9fa",
    "c40100030101010101010101010000000000000102030405060708090a0b",
    "c41100020102040403040705040400010277000102031104052131061241510761711322328108144291a1b1c109233352f0156272d10a16"
    "2434e125f11718191a262728292a35363738393a434445464748494a535455565758595a636465666768696a737475767778797a82838485"
    "868788898a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae2e3e4e5e6e7"
    "e8e9eaf2f3f4f5f6f7f8f9fa",
    "da03010002110311003f00",
)
_POINTS, _MOST = 1024, 65535  # of the curve, and its largest value


@cache
def known_header() -> bytes:
    """Return the bytes that the models read before a header."""
    texts = ((_APP1, _PACKET), *((_APP1, text) for text in _EXIF), (_APP13, _RESOURCE), (_APP2, _PROFILE))
    segments = ((code[0], code[1:]) for code in map(bytes.fromhex, _SEGMENTS))
    return (
        b"".join(_segment(*text) for text in texts)
        + srgb_curve()
        + b"\xff\xd8"
        + b"".join(_segment(*one) for one in segments)
    )


def srgb_curve() -> bytes:
    """Return the curve of sRGB as colour profiles have it: a tag of 12 bytes, and 1,024 values."""
    return b"curv" + bytes(4) + struct.pack(">I", _POINTS) + struct.pack(f">{_POINTS}H", *_curve())


def _segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 255, marker, 2 + len(content)) + content


@cache
def _curve() -> list[int]:
    """Return the values of linear light for equal steps of sRGB (IEC 61966-2-1), rounded."""
    found = list[int]()
    for point in range(_POINTS):
        value = Fraction(point, _POINTS - 1)
        if 100_000 * value <= 4_045:
            found.append(int(_MOST * value * 100 / 1292 + Fraction(1, 2)))
        else:
            found.append(_root((value + Fraction(55, 1000)) * 1000 / 1055))
    return found


def _root(value: Fraction) -> int:
    """Return 65535 times the power of 12/5 of a value up to 1, rounded; floating point only says where to look."""
    wanted = (2 * _MOST * value.numerator**2) ** 5 * value.numerator**2  # times what the denominator has
    unit = value.denominator**12
    guess = int(_MOST * float(value) ** 2.4 + 0.5)
    while (2 * guess - 1) ** 5 * unit > wanted:
        guess -= 1
    while (2 * guess + 1) ** 5 * unit <= wanted:
        guess += 1
    return guess
