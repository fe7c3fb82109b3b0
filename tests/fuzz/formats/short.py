"""Short streams by level and by dictionary, without an index: lengths, levels and payloads, whose checksums are made
right again."""

import io
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import xxhash

import squeeze
from squeeze.codecs.stream import container
from squeeze.codecs.stream.decoding import decode_block
from squeeze.codecs.stream.resources import Resources
from squeeze.codecs.stream.settings import from_header
from squeeze.errors import SqueezeError
from squeeze.system.binary import varint
from tests.fuzz import mutations
from tests.fuzz.formats.sqz import WAYS, Case, Sample, Sqz
from tests.fuzz.streams import compile_levels
from tests.makers import inputs
from tests.makers.streams import long


@dataclass
class _Short:
    """A short stream taken apart."""

    header: bytes  # what stands before the lengths: the form, or a dictionary's digits
    raw_length: int
    payload_length: int  # 0: stored
    checksum: int
    payload: bytes

    @property
    def names_dictionary(self) -> bool:
        return any(form & container.RECORD for form in self.header[len(container.MAGIC) :][:1])

    def to_bytes(self) -> bytes:
        lengths = varint(self.raw_length) + varint(self.payload_length)
        return self.header + lengths + self.checksum.to_bytes(4, "little") + self.payload


class Short(Sqz):
    """Files of every level, records, files of several, and one in which a long stream follows."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.model = name, None
        compile_levels()
        samples = [inputs.words(400, seed=seed) for seed in range(6)]
        self.dictionary = squeeze.train(samples, level=4, text_size=600, learn_size=1_000)
        text, noise, table = inputs.words(700), inputs.random_bytes(90), inputs.records(30)
        raws = [b"", noise[:9], noise, text, table, inputs.machine_code(80), text[:200] + noise]
        coded = [squeeze.compress(raw, 1 + n % 6, threads=1) for n, raw in enumerate(raws)]
        records = [text[:150], table[:300], noise[:40], b""]
        coded += [squeeze.compress(raw, dictionary=self.dictionary, threads=1) for raw in records]
        raws += records
        self.shorts = [_parsed(one) for one in coded]
        self.samples = [Sample(raw, one) for raw, one in zip(raws, coded, strict=True)]
        self.samples.append(Sample(b"".join(raws), b"".join(coded)))
        self.samples.append(Sample(table + text + records[0], coded[4] + long(text, 1) + coded[7]))
        for number, sample in enumerate(self.samples):
            for way in WAYS if number == 0 else WAYS[number % 4 : number % 4 + 1]:
                self.read(Case(sample.coded, sample.raw, way, number), folder)

    def _rebuilt(self, sample: Sample, random: Random) -> bytes:
        """Other streams, in which something is changed."""
        shorts = [replace(short) for short in random.choices(self.shorts, k=random.choice((1, 1, 2, 5)))]
        for _ in range(random.choice((1, 1, 2))):
            change = random.choice((self._header, _lengths, _lengths, self._payload, self._payload, self._payload))
            change(random.choice(shorts), random)
        data = b"".join(short.to_bytes() for short in shorts)
        return mutations.damaged(data, random) if random.random() < 0.1 else data

    def _header(self, short: _Short, random: Random) -> None:
        """Another form, or other digits of the dictionary."""
        if not short.names_dictionary or random.random() < 0.2:
            known = random.choice((0x10, 0x20, 0x50, 0x60)) | random.randrange(1, 10)
            form = random.choice((random.randrange(256), known))
            short.header = container.MAGIC + bytes([form, *([random.randrange(8)] if form & 0x20 else [])])
            return
        assert self.dictionary
        short.header = container.short_header_bytes(4, False, self.dictionary.identity, None)
        if random.random() < 0.3:
            short.header = short.header[:-2] + mutations.damaged(short.header[-2:], random)

    def _payload(self, short: _Short, random: Random) -> None:
        """Other coded bytes, or another header or length, with the checksum of what they decode to, if they do."""
        if random.random() < 0.3:
            self._header(short, random)
        if random.random() < 0.3:
            short.raw_length = random.choice((short.raw_length + 1, short.raw_length * 2, 1, 3_000))
        head = random.randrange(1, 9) if random.random() < 0.4 else len(short.payload)
        short.payload = mutations.damaged(short.payload[:head], random) + short.payload[head:]
        short.payload_length = len(short.payload)
        short.raw_length = max(short.raw_length, short.payload_length)
        if short.raw_length > container.MAX_SHORT:
            return
        with suppress(SqueezeError):
            header = container.read_header(io.BytesIO(short.header))
            assert header is not None
            settings = from_header(header, Resources(1, dictionary=self.dictionary))
            raw = decode_block(container.Coded(header.kind, short.payload), short.raw_length, settings).tobytes()
            short.checksum = xxhash.xxh3_64_intdigest(raw) & 0xFFFFFFFF


def _parsed(coded: bytes) -> _Short:
    file = io.BytesIO(coded)
    header = container.read_header(file)
    assert header is not None
    block = container.read_short_block_header(file, header.kind)
    payload_length = 0 if block.kind == container.STORED else block.payload_length
    return _Short(coded[: header.size], block.raw_length, payload_length, block.checksum, file.read())


def _lengths(short: _Short, random: Random) -> None:
    if random.random() < 0.5:
        short.raw_length = mutations.size(random, short.raw_length)
    else:
        short.payload_length = mutations.size(random, short.payload_length)


FORMAT = Short
