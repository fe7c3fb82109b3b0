"""Bytes of saved caches: every bit and every digit counts, and what no writer wrote is refused."""

import json

import pytest
import safetensors.numpy
import torch
from transformers import LlamaConfig

from squeeze.errors import FormatError, LimitError, PolicyError, TruncatedError
from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.kv.saved import to_bytes
from squeeze.system.limits import Limits
from tests.kv.test_file import filled, same
from tests.makers.audit import news
from tests.makers.kv_models import llama

FORMAT, CHECKSUM = "squeeze.kv", "squeeze.kv.xxh3"


@pytest.fixture(scope="module")
def model():
    return llama()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a small cache and its file."""
    config = LlamaConfig(num_hidden_layers=1, num_attention_heads=1, hidden_size=8)
    cache, path = QuantizedKVCache(config, FullPrecision(sinks=1)), tmp_path_factory.mktemp("small") / "a.kv"
    for layer in cache.packed_layers:
        layer.update(torch.arange(6.0).view(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    cache.save(path)
    return cache, path.read_bytes()


def test_every_bit_and_every_digit_counts(small, tmp_path):
    """Check that a flipped bit or another digit in the header is an error or leaves the cache unchanged."""
    cache, data = small
    start, path = 8 + int.from_bytes(data[:8], "little"), tmp_path / "a.kv"
    changes = [(at, data[at] ^ 1 << bit) for at in range(len(data)) for bit in range(8)]
    digits = [at for at in range(8, start) if chr(data[at]).isdigit()]
    changes += [(at, other) for at in digits for other in b"0123456789" if other != data[at]]
    path.write_bytes(data)
    noticed = 0
    with path.open("r+b", buffering=0) as file:
        for at, other in changes:
            file.seek(at)
            file.write(bytes([other]))
            try:
                same(cache, QuantizedKVCache.load(path, cache.config))
            except (FormatError, PolicyError):
                noticed += 1
            file.seek(at)
            file.write(data[at : at + 1])
    assert noticed == len(changes) > 8000
    same(cache, QuantizedKVCache.load(path, cache.config))


def parts(data):
    """Metadata without the checksum, description and payloads of a file."""
    start = 8 + int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8:start])["__metadata__"]
    return json.loads(metadata[FORMAT]), safetensors.numpy.load(bytes(data))


def checked(description, payloads):
    """Return a file with a correct checksum over any content."""
    return bytes(to_bytes(description, payloads))


def test_a_file_without_a_checksum_is_refused(small, tmp_path):
    cache, data = small
    description, payloads = parts(data)
    path = tmp_path / "a.kv"
    path.write_bytes(checked(description, payloads))
    same(cache, QuantizedKVCache.load(path, cache.config))
    path.write_bytes(safetensors.numpy.save(payloads, metadata={FORMAT: json.dumps(description)}))
    with pytest.raises(FormatError, match="the description of the saved KV cache is not readable"):
        QuantizedKVCache.load(path, cache.config)


def put(*place, value):
    def change(description):
        for key in place[:-1]:
            description = description[key]
        description[place[-1]] = value(description[place[-1]]) if callable(value) else value

    return change


CODES, SCALE = "0.part.0.keys.codes", "0.part.0.keys.scale"
CHANGES = {
    "version infinite": put("version", value=float("inf")),
    "version a truth": put("version", value=True),
    "version to come": put("version", value=2),
    "prompt a number": put("prompt", value=7),
    "prompt without tokens": put("prompt", value={"sha256": "0" * 64}),
    "prompt missing": lambda description: description.pop("prompt"),
    "another format": put("format", value="squeeze.kw"),
    "word unknown": put("more", value=1),
    "config short": put("config", value="00"),
    "config a number": put("config", value=7),
    "weights a number": put("weights", value=7),
    "policy none": put("policy", value=None),
    "policy unknown": put("policy", "name", value="lru"),
    "policy a list": put("policy", "name", value=[]),
    "policy with more": put("policy", "more", value=1),
    "bits a truth": put("policy", "parameters", "bits", value=True),
    "bits a fraction": put("policy", "parameters", "bits", value=4.0),
    "bits others": put("policy", "parameters", "bits", value=8),
    "bits nested": put("policy", "parameters", "bits", value=[[[4]]]),
    "window infinite": put("policy", "parameters", "window", value=float("inf")),
    "window huge": put("policy", "parameters", "window", value=1 << 80),
    "sinks fewer": put("policy", "parameters", "sinks", value=1),
    "group huge": put("policy", "parameters", "group", value=1 << 30),
    "group another": put("policy", "parameters", "group", value=32),
    "layers fewer": put("layers", value=lambda layers: layers[:1]),
    "layers none": put("layers", value=None),
    "layer a number": put("layers", 0, value=7),
    "dropped of a layer that drops nothing": put("layers", 0, "dropped", value=4),
    "dropped a fraction": put("layers", 0, "dropped", value=0.0),
    "dropped not a number": put("layers", 0, "dropped", value=float("nan")),
    "dropped negative": put("layers", 0, "dropped", value=-1),
    "dropped a truth": put("layers", 0, "dropped", value=False),
    "evicted by a policy that evicts nothing": put("layers", 0, "evicted", value=16),
    "evicted huge": put("layers", 0, "evicted", value=1 << 80),
    "coded too little": put("layers", 0, "coded_tokens", value=16),
    "coded half a block": put("layers", 0, "coded_tokens", value=lambda n: n + 1),
    "parts": put("layers", 0, "parts", value=2),
    "layer with more": put("layers", 0, "more", value=0),
    "record none": put("records", value=lambda records: dict(list(records.items())[1:])),
    "records no table": put("records", value=[]),
    "record a number": put("records", CODES, value=7),
    "record with more": put("records", CODES, "more", value=0),
    "coding unknown": put("records", CODES, "coding", value="gzip"),
    "coding a list": put("records", CODES, "coding", value=[]),
    "dtype unknown": put("records", CODES, "dtype", value="F64"),
    "dtype another": put("records", SCALE, "dtype", value="F16"),
    "shape huge": put("records", CODES, "shape", value=[1 << 39] * 5),
    "shape of fractions": put("records", CODES, "shape", value=lambda shape: [float(n) for n in shape]),
    "shape negative": put("records", CODES, "shape", value=[-1, 2]),
    "shape turned": put("records", CODES, "shape", value=lambda shape: shape[::-1]),
    "width infinite": put("records", CODES, "width", value=float("inf")),
    "width 3": put("records", CODES, "width", value=3),
    "checksum short": put("records", CODES, "xxh3", value="00"),
    "checksum another": put("records", CODES, "xxh3", value="0" * 16),
    "checksum a number": put("records", CODES, "xxh3", value=0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_no_writer_wrote_is_refused(name, model, tmp_path):
    path = tmp_path / "a.kv"
    filled(model, KIVI(4, group=16, window=16)).save(path)
    description, payloads = parts(path.read_bytes())
    CHANGES[name](description)
    path.write_bytes(checked(description, payloads))
    with pytest.raises((FormatError, PolicyError, LimitError)) as caught:
        QuantizedKVCache.load(path, model.config)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400
    assert "the checksum of the saved KV cache differs" not in str(caught.value)


def test_claims_are_limited(model, tmp_path):
    path = tmp_path / "a.kv"
    cache = QuantizedKVCache(model.config, FullPrecision())
    with torch.no_grad():
        model(torch.ones((1, 500), dtype=torch.long), **{CACHE: cache})
    for layer in cache.packed_layers:
        layer.residual = tuple(torch.zeros((1, 2, 1 << 14, 8)) for _ in range(2))
    cache.save(path)
    assert path.stat().st_size < 4096
    for limits, words in (
        (
            Limits(memory=1 << 21),
            r"a.kv: the saved KV cache needs [\d,]+ bytes of memory, and the limit is 2,097",
        ),
        (Limits(output=1 << 20), r"a.kv: 4,194,304 bytes or more would be written, and the limit is 1,048,576: "),
        (Limits(memory=1 << 10), r"a.kv: the file needs [\d,]+ bytes of memory, and the limit is 1,024: "),
    ):
        with pytest.raises(LimitError, match=words):
            QuantizedKVCache.load(path, model.config, limits=limits)
    same(cache, QuantizedKVCache.load(path, model.config, limits=Limits(memory=1 << 23, output=1 << 22)))


def test_files_that_are_cut_off(small, tmp_path):
    cache, data = small
    for size in range(0, len(data), 97):
        (tmp_path / "a.kv").write_bytes(data[:size])
        with pytest.raises(TruncatedError):
            QuantizedKVCache.load(tmp_path / "a.kv", cache.config)
    (tmp_path / "a.kv").write_bytes(data + b"\0")
    with pytest.raises(FormatError):
        QuantizedKVCache.load(tmp_path / "a.kv", cache.config)


def test_loading_reads_and_runs_nothing_else(small, tmp_path):
    (tmp_path / "a.kv").write_bytes(small[1])
    code = "\n".join([
        "from transformers import LlamaConfig",
        "from squeeze.kv import QuantizedKVCache",
        "config = LlamaConfig(num_hidden_layers=1, num_attention_heads=1, hidden_size=8)",
        f"print(QuantizedKVCache.load({str(tmp_path / 'a.kv')!r}, config).get_seq_length())",
    ])  # fmt: skip
    assert news(code, [tmp_path]) == []
