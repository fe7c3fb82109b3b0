"""Files that wrap data: zip, gzip, zlib streams, PNG and texts in other forms, made with Python's own modules."""

import base64
import gzip
import hashlib
import io
import json
import quopri
import struct
import urllib.parse
import zipfile
import zlib

from tests.makers import gifs, inputs

TEXTS = tuple(inputs.words(3_000, seed) for seed in range(4))


def zip_archive(members: dict[str, bytes]) -> bytes:
    """Return a zip archive of deflated members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def wheel(texts: tuple[bytes, ...] = TEXTS, wrong: bytes = b"", name: str = "words-1.0") -> bytes:
    """Return a wheel of some texts with small and stored members; `wrong` is one more line of its RECORD."""
    members = {f"words/part-{number}.txt": text for number, text in enumerate(texts)}
    members |= {"words/__init__.py": b"", f"{name}.dist-info/WHEEL": b"Wheel-Version: 1.0\n" * 3}
    lines = wrong + b"".join(
        b"%b,sha256=%b,%d\n"
        % (path.encode(), base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"="), len(content))
        for path, content in members.items()
    )
    file, record = io.BytesIO(), f"{name}.dist-info/RECORD"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in members.items():
            stored = zipfile.ZIP_STORED if path.endswith("1.txt") else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(path), content, stored)
        archive.writestr(zipfile.ZipInfo(record), lines + record.encode() + b",,\n", zipfile.ZIP_DEFLATED)
    return file.getvalue()


def signed_jar(texts: tuple[bytes, ...] = TEXTS, wrong: bytes = b"", is_last: bool = False) -> bytes:
    """Return a signed archive of Java, whose signature is text.

    Args:
        texts: its members, in one of which the name is longer than a line.
        wrong: more lines at the end of the manifest.
        is_last: whether manifest and signature file come after the members, as in those of Android.
    """

    def section(name: str, content: bytes) -> bytes:
        line, lines = f"Name: {name}".encode(), []
        while len(line) > 70:
            line, lines = b" " + line[70:], [*lines, line[:70]]
        digest = base64.b64encode(hashlib.sha256(content).digest())
        return b"".join(part + b"\r\n" for part in [*lines, line, b"SHA-256-Digest: " + digest, b""])

    members = {f"words/{'of/many/' * 8 * (n == 1)}part-{n}.txt": text for n, text in enumerate(texts)}
    sections = {name: section(name, content) for name, content in members.items()}
    manifest = b"Manifest-Version: 1.0\r\n\r\n" + b"".join(sections.values()) + wrong
    signed = (section(name, sections[name]) for name in reversed(sections))
    whole = base64.b64encode(hashlib.sha256(manifest).digest())
    signature = b"Signature-Version: 1.0\r\nSHA-256-Digest-Manifest: " + whole + b"\r\n\r\n" + b"".join(signed)
    about = {"META-INF/MANIFEST.MF": manifest, "META-INF/KEY.SF": signature}
    if is_last:
        return zip_archive(members | dict(reversed(about.items())))
    return zip_archive(about | members)


def gzip_file(content: bytes) -> bytes:
    """Return a gzip file with a name in its header."""
    file = io.BytesIO()
    with gzip.GzipFile("content.txt", "wb", mtime=0, fileobj=file) as sink:
        sink.write(content)
    return file.getvalue()


def png(rows: bytes, width: int = 64, chunk: int = 1_000) -> bytes:
    """Return a grey image of 8 bits whose data is cut into IDAT chunks of some bytes."""
    height = len(rows) // width
    filtered = b"".join(b"\0" + rows[y * width : (y + 1) * width] for y in range(height))
    data = zlib.compress(filtered, 9)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))]
    chunks += [(b"IDAT", data[at : at + chunk]) for at in range(0, len(data), chunk)]
    chunks.append((b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def documents() -> dict[str, bytes]:
    """Return files with wrappers, by name."""
    members = {f"part-{number}.txt": text for number, text in enumerate(TEXTS)}
    texts = base64.encodebytes(TEXTS[0]), TEXTS[1].hex().encode(), TEXTS[2].decode().encode("utf-16-le")
    return {
        "zip": zip_archive(members),
        "wheel": wheel(),
        "signed archive": signed_jar(),
        "gzip": gzip_file(TEXTS[0]),
        "zlib": b"stream\n" + zlib.compress(TEXTS[1]) + b"\nendstream stream\n" + zlib.compress(TEXTS[2], 9) + b"\n",
        "PNG": png(inputs.words(8_000)),
        "nested": zip_archive({"inner.zip": zip_archive(members), "text.gz": gzip_file(TEXTS[3])}),
        "cut off": zip_archive(members)[:-900] + gzip_file(TEXTS[0])[:-20],
        "texts": b"\n".join(texts),
        "wrong sums": gzip_file(TEXTS[0])[:-8] + bytes(8) + zlib.compress(TEXTS[1])[:-4] + b"1234",
    }


def escaped() -> dict[str, bytes]:
    """Return texts with escapes and in digits to the base 85, and a bare deflate stream, by name."""
    text = TEXTS[0].decode().replace("e", "é").replace(" a", " 😀")
    stream = zlib.compress(TEXTS[1])
    return {
        "percent": urllib.parse.urlencode({"first": text, "second": text[:300]}).encode(),
        "quoted": b"Subject: words\n\n" + quopri.encodestring(text.encode()) + b"\n",
        "JSON": json.dumps({"text": text}).encode(),
        "base85": b"data = '" + base64.b85encode(stream) + b"'",
        "Ascii85": base64.a85encode(stream, wrapcol=72, adobe=True),
        "LZW": b"<</Filter /LZWDecode>>\nstream\n"
        + gifs.packed_early(gifs.codes_of(TEXTS[2], 8, 4095))
        + b"\nendstream",
        "bare": inputs.random_bytes(300) + stream[2:-4] + inputs.random_bytes(90),
    }
