"""A dictionary: its file with the checksum made right, and short streams that name the changed one."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import xxhash

import squeeze
from squeeze.codecs.stream import container
from squeeze.codecs.stream.dictionary_file import MAGIC, VERSION
from squeeze.system.binary import varint
from tests.fuzz import mutations
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of
from tests.fuzz.limited import limited
from tests.fuzz.streams import compile_levels
from tests.makers import inputs

_WITH_NETWORK = Path(__file__).parents[2] / "golden" / "dictionary.5.network.sqzp"
_RAW = inputs.words(150, seed=5)


@dataclass(frozen=True)
class Case:
    """data: the dictionary; stream: what it is to decode; whole: whether the dictionary is as it was."""

    data: bytes
    stream: bytes
    way: str
    whole: bool = False


class Dictionary:
    """Dictionaries of levels 4 and 5, for text and for tables, and one that changes the network."""

    seconds = 0.1

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        texts = [inputs.words(400, seed=seed) for seed in range(6)]
        tables = [inputs.records(rows) for rows in range(20, 26)]
        compile_levels()
        self.samples: list[tuple[bytes, bytes]] = []
        for number, (samples, level) in enumerate(((texts, 4), (texts, 5), (tables, 4))):
            path = folder / f"{number}.sqzp"
            known = squeeze.train(samples, path, level=level, text_size=600, learn_size=1_000)
            self.samples.append((path.read_bytes(), squeeze.compress(_RAW, dictionary=known)))
        tuned = _WITH_NETWORK.read_bytes()
        known = squeeze.Dictionary.from_bytes(tuned)
        self.samples.append((tuned, squeeze.compress(_RAW, dictionary=known)))
        for data, stream in self.samples:
            for way in ("stream", "decompress", "compress"):
                self.read(Case(data, stream, way, True), folder)

    def mutate(self, random: Random) -> Case:
        data, stream = random.choice(self.samples)
        if random.random() < 0.25:
            return Case(data, mutations.damaged(stream, random), "decompress", True)
        changed = one_of(
            random,
            (2, lambda r: mutations.damaged(data, r)),
            (1, lambda r: mutations.spliced(data, r.choice(self.samples)[0], r)),
            (6, lambda r: self._rebuilt(data, r)),
        )
        return Case(changed, stream, random.choice(("stream", "decompress", "compress")))

    def _rebuilt(self, data: bytes, random: Random) -> bytes:
        """Another header or other parts, the checksum of which is right again."""
        header, parts = _parsed(data)
        at = random.randrange(len(parts))
        if random.random() < 0.05:
            header["changes_network"] = 1 - header["changes_network"]
        match random.randrange(5):
            case 0 | 1:
                return _built(mutations.mutated(header, random), parts)
            case 2:
                parts[at] = mutations.damaged(parts[at], random)
            case 3:
                head = random.randrange(1, 12)
                parts[at] = mutations.damaged(parts[at][:head], random) + parts[at][head:]
            case _:
                other = random.choice(_parsed(random.choice(self.samples)[0])[1])
                parts[at : at + random.randrange(2)] = random.choice(([], [other], [other, other]))
        header["parts"] = [len(part) for part in parts]
        return _built(header, parts)

    def read(self, case: Case, folder: Path) -> str:
        if case.whole:
            known = squeeze.Dictionary.from_bytes(case.data)
            found = limited(squeeze.decompress, case.stream, dictionary=known)
            return _proved(found, case)
        (folder / "a.sqzp").write_bytes(case.data)
        known = squeeze.Dictionary.read(folder / "a.sqzp")
        if case.way == "compress":
            if squeeze.decompress(squeeze.compress(_RAW, dictionary=known), dictionary=known) != _RAW:
                raise Wrong("compress: a round trip gives other bytes")
            return TRUE
        stream = case.stream
        if case.way == "stream":  # as if it named the changed dictionary
            stream = container.short_header_bytes(0, False, known.identity, None) + stream[_header(stream).size :]
        return _proved(limited(squeeze.decompress, stream, dictionary=known), case)


def _proved(found: bytes, case: Case) -> str:
    """SAME, or TRUE where the stream's own checksum is that of the bytes."""
    if found == _RAW:
        return SAME
    checksums = {(xxhash.xxh3_64_intdigest(found) & 0xFFFFFFFF).to_bytes(4, "little")}
    if any(checksum in case.stream for checksum in checksums) and _header(case.stream).names_content:
        return TRUE
    half = case.stream[: len(case.stream) // 2]
    if (found == _RAW * 2 and case.stream == half * 2) or (found.startswith(_RAW) and len(case.stream) > len(found)):
        return TRUE  # another stream follows
    raise Wrong("decompress: other bytes than the checksum says")


def _header(stream: bytes) -> container.Header:
    header = container.read_header(io.BytesIO(stream))
    assert header is not None
    return header


def _parsed(data: bytes) -> tuple[Any, list[bytes]]:
    at, length, shift = len(MAGIC) + 1, 0, 0
    while True:
        length |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            break
    header, at = json.loads(data[at : at + length]), at + length
    parts = []
    for size in header["parts"]:
        parts.append(data[at : at + size])
        at += size
    return header, parts


def _built(header: Any, parts: list[bytes]) -> bytes:
    text = mutations.to_json(header, separators=(",", ":")).encode("utf-8", "surrogatepass")
    body = MAGIC + bytes([VERSION]) + varint(len(text)) + text + b"".join(parts)
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


FORMAT = Dictionary
