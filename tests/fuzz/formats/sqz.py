"""A .sqz file of long streams: blocks with checksums and an index, made right again where that reaches deeper."""

import io
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import xxhash

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.stream import container, index, levels
from squeeze.codecs.stream.decoding import decode_block
from squeeze.codecs.stream.encoding import by_language, join
from squeeze.codecs.stream.resources import LanguageOptions, Resources
from squeeze.codecs.stream.settings import from_header, settings_for_level, to_header
from squeeze.errors import SqueezeError
from tests.fuzz import mutations
from tests.fuzz.judging import SAME, TRUE, Sink, Wrong, one_of
from tests.fuzz.limited import limited
from tests.fuzz.streams import Part, Stream, compile_levels, header_of, parsed, prove
from tests.makers import inputs, tiny_models
from tests.makers.streams import long

_MOST_DECODED = 1 << 16  # bytes of a block that is changed already; models take memory by the length


@dataclass(frozen=True)
class Case:
    """data: the file; original: what the sample holds; way: how it is read."""

    data: bytes
    original: bytes
    way: str
    seed: int = 0


@dataclass(frozen=True)
class Sample:
    raw: bytes
    coded: bytes
    streams: list[Stream] = field(default_factory=list)


WAYS = ("decompress", "salvage", "open", "list")


class Sqz:
    """Files of one level."""

    seconds = 0.05
    dictionary: squeeze.Dictionary | None = None  # that all is read with

    def __init__(self, name: str, folder: Path, level: int) -> None:
        self.name, self.level = name, level
        self.model: Path | None = None
        if level >= 7:
            self.model = tiny_models.write_gguf(folder / "tiny.gguf", tiny_models.byte_level())
        compile_levels()
        self.samples = [self._sample(raw, size) for raw, size in self._inputs()]
        if self.model:
            self.samples.append(self._split(self.model))
        self.samples.append(self._joined(self.samples[0], self.samples[-1]))
        for number, sample in enumerate(self.samples):
            for way in WAYS if number == 0 else WAYS[number % 4 : number % 4 + 1]:
                self.read(Case(sample.coded, sample.raw, way, number), folder)

    def _inputs(self) -> list[tuple[bytes, int]]:
        text, noise, table = inputs.words(900), inputs.random_bytes(300), inputs.records(30)
        if self.level in (5, 6):
            return [(text[:600] + noise[:50], 300), (table + inputs.machine_code(60), 1 << 20), (noise[:9], 4)]
        if self.level == 8:
            odd = b"<|endoftext|> \xff\xfe caf\xc3\xa9 \0\r\n" * 3
            return [(text[:500], 260), (text[:300] + odd, 1 << 20)]
        runs = text[:200] + bytes(3000) + b"\1\2\3" * 900 + noise[:90]
        code = inputs.machine_code(80) + table
        return [(text + noise + table, 400), (code, 1 << 20), (runs, 1 << 20), (b"", 9), (noise[:9], 4)]

    def _sample(self, raw: bytes, size: int) -> Sample:
        if self.model:
            stream = self._of_language(raw, size, self.model)
            return Sample(raw, stream.to_bytes(), [stream])
        coded = long(raw, self.level, size)
        return Sample(raw, coded, parsed(coded, raw))

    def _of_language(self, raw: bytes, size: int, model: Path) -> Stream:
        """Blocks that the language model codes, though an untrained one does so badly."""
        settings = settings_for_level(levels.level(self.level), 1, None, LanguageOptions(model, lanes=2))
        stream = Stream(to_header(settings), [], xxhash.xxh3_64_intdigest(raw))
        for at in range(0, len(raw), size):
            piece = raw[at : at + size]
            coded = by_language(np.frombuffer(piece, np.uint8), Content("text"), settings, None)
            kind, payload = (coded.kind, coded.payload) if coded else (container.STORED, piece)
            stream.parts.append(Part(kind, len(piece), payload, xxhash.xxh3_64_intdigest(piece), piece))
        return stream

    @staticmethod
    def _split(model: Path) -> Sample:
        """A block of texts among machine code, too short for a writer to split it."""
        settings = settings_for_level(levels.level(8), 1, None, LanguageOptions(model, lanes=2))
        text, code = inputs.words(900)[:250], inputs.machine_code(30)
        raw = code + text + code + text
        of_text = np.repeat([False, True, False, True], [len(code), len(text)] * 2)
        data = np.frombuffer(raw, np.uint8)
        coded = by_language(data[of_text], Content("text"), settings, None)
        assert coded
        payload = join(of_text, coded, data[~of_text], settings, None)
        checksum = xxhash.xxh3_64_intdigest(raw)
        stream = Stream(to_header(settings), [Part(container.SPLIT, len(raw), payload, checksum, raw)], checksum)
        return Sample(raw, stream.to_bytes(), [stream])

    @staticmethod
    def _joined(one: Sample, other: Sample) -> Sample:
        raw, coded = one.raw + other.raw, one.coded + other.coded
        return Sample(raw, coded, parsed(coded, raw))

    def mutate(self, random: Random) -> Case:
        sample = random.choice(self.samples)
        data = one_of(
            random,
            (3, lambda r: mutations.damaged(sample.coded, r)),
            (1, lambda r: mutations.spliced(sample.coded, r.choice(self.samples).coded, r)),
            (6, lambda r: self._rebuilt(sample, r)),
        )
        way = random.choice(("decompress", "decompress", "salvage", "open", "list"))
        return Case(data, sample.raw, way, random.randrange(1 << 30))

    def _rebuilt(self, sample: Sample, random: Random) -> bytes:
        """Other blocks, headers or indexes, the checks of which are right again."""
        streams = [replace(s, parts=[replace(part) for part in s.parts]) for s in sample.streams]
        for _ in range(random.choice((1, 1, 2))):
            stream = random.choice(streams)
            change = random.choice(
                (self._order, self._order, self._block, self._payload, self._payload, _header, _index)
            )
            change(stream, random)
        if random.random() < 0.5:
            for stream in streams:
                if all(part.raw is not None for part in stream.parts):
                    raws = (part.raw or b"" for part in stream.parts)
                    stream.checksum = xxhash.xxh3_64_intdigest(b"".join(raws))
        if random.random() < 0.1:
            streams.insert(random.randrange(len(streams) + 1), random.choice(streams))
        data = b"".join(stream.to_bytes() for stream in streams)
        return mutations.damaged(data, random) if random.random() < 0.1 else data

    def _order(self, stream: Stream, random: Random) -> None:
        """Blocks swapped, doubled, removed, or taken from elsewhere."""
        parts, others = stream.parts, random.choice(random.choice(self.samples).streams).parts
        at = random.randrange(len(parts) + 1)
        match random.randrange(5):
            case 0:
                random.shuffle(parts)
            case 1 if at < len(parts):
                parts[at:at] = [parts[at]] * random.choice((1, 2, 50))
            case 2:
                del parts[at : at + 1]
            case 3 if others:
                parts.insert(at, replace(random.choice(others)))
            case _:
                raw = random.randbytes(random.choice((0, 1, 40)))
                parts.insert(at, Part(container.STORED, len(raw), raw, xxhash.xxh3_64_intdigest(raw), raw))

    @staticmethod
    def _block(stream: Stream, random: Random) -> None:
        """Change a field of a block's header."""
        if not stream.parts:
            return
        part = random.choice(stream.parts)
        match random.randrange(5):
            case 0:
                part.raw_length, part.raw = mutations.size(random, part.raw_length), None
            case 1:
                part.payload_length = mutations.size(random, len(part.payload))
            case 2:
                part.kind = random.choice((1, 2, 3, 4, 5, 255))
            case 3:
                part.checksum = random.choice((0, part.checksum ^ 1, (1 << 64) - 1))
            case _:
                part.payload = part.payload[: random.randrange(len(part.payload) + 1)]

    def _payload(self, stream: Stream, random: Random) -> None:
        """Other coded bytes or another length, with the checksum of what they decode to, if they do."""
        coded = [part for part in stream.parts if part.kind != container.STORED]
        if not coded:
            return
        part = random.choice(coded)
        if random.random() < 0.8:
            head = random.randrange(1, 9) if random.random() < 0.4 else len(part.payload)
            part.payload = mutations.damaged(part.payload[:head], random) + part.payload[head:] or b"\0"
        else:
            part.raw_length = random.choice((part.raw_length + 1, part.raw_length * 2, 1, 3_000))
        part.raw_length = max(part.raw_length, len(part.payload))
        part.raw = None
        if part.raw_length > _MOST_DECODED:
            return
        with suppress(SqueezeError):
            settings = from_header(container.Header(stream.fields, 0, False), Resources(1, self.model))
            part.right(decode_block(container.Coded(part.kind, part.payload), part.raw_length, settings).tobytes())

    def read(self, case: Case, folder: Path) -> str:
        read = {"decompress": self._decompress, "salvage": self._salvage, "open": self._open, "list": self._list}
        return read[case.way](case)

    def _resources(self) -> dict[str, Any]:
        return {"threads": 1, "model": self.model, "dictionary": self.dictionary}

    @staticmethod
    def _proved(case: Case, found: bytes | bytearray, way: str, whole: bool = True) -> str:
        if found == case.original:
            return SAME
        prove(case.data, bytes(found), way, whole)
        return TRUE

    def _decompress(self, case: Case) -> str:
        sink = Sink()
        limited(squeeze.decompress_stream, io.BytesIO(case.data), sink, **self._resources())
        return self._proved(case, sink.data, "decompress")

    def _salvage(self, case: Case) -> str:
        sink = Sink()
        source = io.BytesIO(case.data)
        totals = limited(squeeze.decompress_stream, source, sink, salvage=True, **self._resources())
        return TRUE if totals.damage else self._proved(case, sink.data, "salvage without a word of damage")

    def _open(self, case: Case) -> str:
        random, found = Random(case.seed), b""
        with limited(squeeze.open, io.BytesIO(case.data), **self._resources()) as file:
            size = file.seek(0, io.SEEK_END)
            if size > 1 << 20:
                file.seek(random.randrange(size))
                return TRUE if len(file.read(100)) else SAME
            file.seek(0)
            found = file.read()
            for _ in range(2):
                at = random.randrange(size + 1)
                file.seek(at)
                if file.read(20) != found[at : at + 20]:
                    raise Wrong("open gives other bytes at second sight")
        return self._proved(case, found, "open", whole=False)

    @staticmethod
    def _list(case: Case) -> str:
        from squeeze.codecs.stream.summing import contents_in
        from squeeze.commands import list as command

        said = io.StringIO()
        with redirect_stdout(said):
            streams = limited(index.read_index, io.BytesIO(case.data))
            opened = limited(contents_in, io.BytesIO(case.data), streams)
            command._list_as_text(None, streams, True, opened)
            command._list_as_json(None, streams, [], opened)
        if not all(line.isprintable() for line in said.getvalue().split("\n")):
            raise Wrong("list: prints what a file holds as it stands")
        return TRUE


def _header(stream: Stream, random: Random) -> None:
    if random.random() < 0.3:
        stream.fields = {**stream.fields, "level": random.choice((1, 2, 3, 4, 5, 6, 7, 8, 9))}
    else:
        stream.header = header_of(mutations.mutated(stream.fields, random))


def _index(stream: Stream, random: Random) -> None:
    """An index of other blocks."""
    entries = [(part.raw_length, len(part.to_bytes())) for part in stream.parts]
    at = random.randrange(len(entries) + 1)
    lie = (mutations.size(random, 40), mutations.size(random, 40))
    entries[at : at + random.randrange(2)] = [lie] * random.choice((0, 1, 1, 200))
    stream.entries = entries
    stream.tail = random.choice((b"", b"", b"\0", b"QS"))


FORMAT = Sqz
