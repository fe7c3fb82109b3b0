"""A file with wrappers of many kinds: zip, UTF-16, gzip in base64, and GIF, whose bytes no version of zlib changes."""

import base64
import struct
import zlib

from tests.makers import gifs, inputs
from tests.references import naive_bzip2

# Streams that zlib 1.2.13 wrote at level 6: of inputs.PROSE, and of a page of HTML.
PROSE = base64.b64decode(
    "XVSxjtswDN39FUSWLqmBttt1uqHDDUWBXoHOtM1EQmTRkOSo7tf3UboAhw654Cjqvcf3qHw/6Jo4LqsWJ4lushWaRDL+OB8XQpU0LLT6EEb6dp"
    "d0UN6Sj1fKOJo5JS+9zfk77vGcNOdWSCikM5Bm3rMMVlqFF62ZNHbkRpr9IlQlCV32EEgvNAdtVyGMpHHyXvY1/s+5ktNViK/s40i/nXTYKfnl"
    "CkjOA5AyejUKHcKAjDrpcpDvnXeMxWgtTverK/jm0kiq7pj6YhYwgI6vNO3FZDPNzQ9N0UwAzjPsCNBPmSthniEX6H47ZJo0Ja3QMCmXM1VfHK"
    "p3wR0b0m7QhWfp0xaX5GHlJKUKRmrBRIQyDsPpl5ODFsUchYK/QbqikQIXOZ+a9Mx+AY+ZkeFOG5fzDQoMqLqju9gGNJTKvtBFE/h7HiC9jXR6"
    "jssQxbcSCF/GE72qzekkbG9oILc4jncLsG89A463c/OdL8U6H3H3Od9iQESUyw6vzF4cD3l2qmHlXKy1OiXH8C71fJzPIFwl8UhwgjY/lx2Lkw"
    "uCRGe85ke0RSus4xCeWgjmfbf9jIX7g02MPR+EMzQaixUXfQKbcHFdKDdZFORSSJa2KqB7J/JDNt7F0IMvJWD0sKckC9J6wdFd+qsyu2Aw8tBb"
    "HunVlizhf3gLodW9EVWjthDgTMvXRDittHI8aNM9LtmeiIO1zfbU305TO1iCtnkSMioWKj7l+PjYfxD/6PYEiKfNdh/pZz7yE51+tmdkvrafAG"
    "7Q9u4/faYwjfSF9O94Gv4B"
)
PAGE = base64.b64decode(
    "rdPLDQIhFAXQvVXcpSbqMF80IVRhA5B547AQUJgYu7cCN+Y2cHbHZHtbBc9NNkFaYLyNaZaTUso03iIUyCPXzxEuzti7Ai9LeskBMdU1xDveLt"
    "RyNk22O/MT00SsHYhY1zKxCxHrRyI2dEzsSsTGiYhNPRHTzAH6jwFf"
)


def _archive(name: bytes, stream: bytes) -> bytes:
    """Return a zip archive of one deflated member."""
    content = zlib.decompress(stream, -15)
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, zlib.crc32(content), len(stream), len(content), len(name), 0)
    member = b"PK\3\4" + fields + name + stream
    entry = b"PK\1\2\x14\0" + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    return member + entry + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(member), 0)


def _gzip(stream: bytes) -> bytes:
    """Return a gzip file without a name."""
    content = zlib.decompress(stream, -15)
    return b"\x1f\x8b\x08" + bytes(6) + b"\3" + stream + struct.pack("<II", zlib.crc32(content), len(content))


WRAPPED = b"\n".join(
    [
        _archive(b"prose.txt", PROSE),
        base64.b64encode(_gzip(PAGE)),
        base64.encodebytes(inputs.words(700, seed=12)),
        inputs.PROSE.decode().encode("utf-16-le"),
        naive_bzip2.close(inputs.words(900), b"\x01"),
        gifs.gif(60, [gifs.image(60, gifs.packed(gifs.codes_of(inputs.words(3_000), 8), 8), 8, 50)]),
    ]
)
