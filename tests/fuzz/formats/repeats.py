"""A .sqz file whose blocks repeat earlier ones: ranges, lists of copies, and what blocks code themselves."""

import io
from pathlib import Path
from random import Random

from squeeze.codecs.stream import container
from squeeze.codecs.stream.compressor import compress_stream
from tests.fuzz import mutations
from tests.fuzz.formats.sqz import Sample, Sqz
from tests.fuzz.streams import Stream, parsed
from tests.makers import inputs, wrapped

WINDOW = 1 << 20


class Repeats(Sqz):
    """Files of texts, noise and wrappers that come again."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder, 1)

    def _inputs(self) -> list[tuple[bytes, int]]:
        text, noise = inputs.words(900), inputs.random_bytes(700)
        again = text + noise + text[100:700] + b"between" + noise[:300] + text[:90] + noise[200:]
        return [(again, 400), (again + noise, 1_500), (wrapped.documents()["zip"] * 2 + noise, 1_800)]

    def _sample(self, raw: bytes, size: int) -> Sample:
        sink = io.BytesIO()
        compress_stream(io.BytesIO(raw), sink, level=1, block_size=size, long=WINDOW)
        return Sample(raw, sink.getvalue(), parsed(sink.getvalue(), raw))

    def _payload(self, stream: Stream, random: Random) -> None:
        """Change a payload as in other files, or its ranges and its number of copies."""
        found = [part for part in stream.parts if part.kind == container.REPEATS]
        if not found or random.random() < 0.5:
            super()._payload(stream, random)
            return
        part = random.choice(found)
        part.payload = mutations.damaged(part.payload[:12], random) + part.payload[12:] or b"\0"
        part.raw_length = max(part.raw_length, len(part.payload))
        part.raw = None


FORMAT = Repeats
