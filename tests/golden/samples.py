"""What the golden files hold. Nothing here may change: it is compared with what files coded long ago decode to."""

import squeeze
from squeeze.codecs.stream import levels
from tests.makers import inputs

SAMPLES = {
    "empty": b"",
    "one": b"\xff",
    "bytes": bytes(range(256)) * 3,
    "words": inputs.words(4_000),
    "records": inputs.records(300),
    "code": inputs.machine_code(400),
    "mixed": inputs.SPECIAL_TOKENS + bytes(2_000) + inputs.words(1_000, seed=11) + inputs.random_bytes(500),
    "prose": inputs.PROSE,
    "random": inputs.random_bytes(700),
}
RECORD = b'{"number": 0, "state": "done", "worker": "node-005", "seconds": 111.24, "queue": "mail"}'.ljust(148)


BATCHES = ("words", "prose", "mixed")


def in_batches(data: bytes) -> bytes:
    """A golden file whose lanes are coded in batches, the last one smaller."""
    return squeeze.compress(data, 8, lanes=7, batch=5, verify=False)


def coded(data: bytes, level: int) -> bytes:
    """A golden file; at levels 7 to 9 with an index, where a short stream would be level 6's."""
    plain = levels.level(level).needs_language_model and data is not inputs.PROSE
    whole = max(len(data), 1) if plain else None
    return squeeze.compress(data, level, block_size=whole, verify=False)
