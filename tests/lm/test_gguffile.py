"""Untrusted GGUF files: no claim of a file is trusted, and a file that becomes shorter is an error."""

import os
import struct

import numpy as np
import pytest

from squeeze.errors import ModelError
from squeeze.integrations.gguf.import_ import import_gguf
from squeeze.lm import loading
from squeeze.lm.gguffile import GgufFile
from squeeze.lm.loading import load
from tests.makers import tiny_models

UINT8, UINT32, INT32, FLOAT, TEXT, LIST = 0, 4, 5, 6, 8, 9


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def field(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def entry(name, shape, kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def whole(fields=(), tensors=(), data=b"", counts=None):
    head = b"GGUF" + struct.pack("<IQQ", 3, *(counts or (len(tensors), len(fields)))) + b"".join([*fields, *tensors])
    return head + bytes(-len(head) % 32) + data


def test_reads_a_small_file(tmp_path):
    path = tmp_path / "x.gguf"
    fields = [field("a", UINT32, struct.pack("<I", 7)), field("b", LIST, struct.pack("<IQ", TEXT, 2) + text("x") * 2)]
    path.write_bytes(whole(fields, [entry("t", (3, 2))], np.arange(6, dtype="<f4").tobytes()))
    file = GgufFile(path)
    assert (file.fields, file.shapes) == ({"a": 7, "b": ["x", "x"]}, {"t": (2, 3)})
    assert file.float_rows("t", 1, 9).tolist() == [[3, 4, 5]]


HUGE = struct.pack("<Q", 1 << 62)
HOSTILE = {
    "metadata is cut off": whole(counts=(0, 1 << 60)),
    "is cut off": whole(counts=(1 << 63, 0)),
    "cut off": whole([text("a") + struct.pack("<I", LIST) + struct.pack("<I", UINT8) + HUGE]),
    "the metadata is cut": whole([text("a") + struct.pack("<I", LIST) + struct.pack("<I", TEXT) + HUGE]),
    "metadata is cut": whole([HUGE + b"a"]),
    "array of arrays": whole([field("a", LIST, struct.pack("<IQ", LIST, 1) * 1000)]),
    "unknown kind 99": whole([field("a", 99, b"")]),
    "says 'a' twice": whole([field("a", UINT8, b"1")] * 2),
    "GGUF version 9": b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
    "'utf-8' codec": whole([field(b"\xff", UINT8, b"1")]),
    "has 0 dimensions": whole(tensors=[entry("t", ())]),
    "has 900 dimensions": whole(tensors=[text("t") + struct.pack("<I", 900)]),
    "has no elements": whole(tensors=[entry("t", (0, 1 << 60))]),
    "'t' is cut off": whole(tensors=[entry("t", (1 << 40, 1 << 40))]),
    "tensor 't' is cut off": whole(tensors=[entry("t", (1,), offset=1 << 63)]),
    "two tensors 't'": whole(tensors=[entry("t", (1,)), entry("t", (1,), offset=32)], data=bytes(64)),
    "overlaps": whole(tensors=[entry("t", (8,)), entry("u", (8,), offset=4)], data=bytes(64)),
    "not a valid": whole(tensors=[entry("t", (1,), kind=12345)], data=bytes(64)),
    "impossible general.alignment": whole([field("general.alignment", INT32, struct.pack("<i", -32))]),
    "impossible general": whole([field("general.alignment", TEXT, text("32"))]),
    "impossible gen": whole([field("general.alignment", INT32, struct.pack("<i", 1 << 30))]),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_refuses_hostile_files(tmp_path, message):
    path = tmp_path / "x.gguf"
    path.write_bytes(HOSTILE[message])
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        GgufFile(path)
    refused(path)


def refused(path):
    for action in (load, lambda path: import_gguf(path, path.with_name("out"))):
        with pytest.raises(ModelError) as found:
            action(path)
        assert str(found.value).isprintable() and len(str(found.value)) < 500
    assert not path.with_name("out").exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return tiny_models.write_gguf(path, tiny_models.byte_level()).read_bytes()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "cache_folder", lambda: tmp_path / "cache")


WRONG = {  # the key of a number in the metadata: what it becomes
    "llama.attention.head_count": (0, 3, 1 << 31),
    "llama.attention.head_count_kv": (0, 3),
    "llama.block_count": (0, 1, 3, 0xFFFFFFFF),
    "llama.embedding_length": (0, 1, 0xFFFFFFFF),
    "llama.feed_forward_length": (0, 49),
    "llama.context_length": (0, 0xFFFFFFFF),
    "tokenizer.ggml.bos_token_id": (400, 0xFFFFFFFF),
}


@pytest.mark.parametrize("key", WRONG)
def test_refuses_descriptions_that_tensors_contradict(tmp_path, model, key):
    path, at = tmp_path / "x.gguf", model.index(text(key)) + len(text(key)) + 4
    for number in WRONG[key]:
        path.write_bytes(model[:at] + struct.pack("<I", number) + model[at + 4 :])
        refused(path)


def test_refuses_fields_of_wrong_types(tmp_path, model):
    path = tmp_path / "x.gguf"
    for key in (*WRONG, "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"):
        at = model.index(text(key)) + len(text(key))
        for other in (field("", TEXT, text("\x1b[31m"))[8:], struct.pack("<IIQ", LIST, UINT8, 1) + b"\x01"):
            changed = model[:at] + other + model[at + 8 :]
            path.write_bytes(changed)
            refused(path)


def test_refuses_vocabularies_of_wrong_types(tmp_path, model):
    path = tmp_path / "x.gguf"
    for key in ("tokens", "token_type", "merges", "model", "pre"):
        begin = model.index(text(f"tokenizer.ggml.{key}"))
        renamed = model.replace(text(f"tokenizer.ggml.{key}"), text(f"tokenizer.ggml.{'x' * len(key)}"))
        number = field(f"tokenizer.ggml.{key}", UINT32, struct.pack("<I", 3))
        numbers = field(f"tokenizer.ggml.{key}", LIST, struct.pack("<IQ2f", FLOAT, 2, 1.0, float("nan")))
        for wrong in (number, numbers):
            count = struct.unpack_from("<Q", renamed, 16)[0] + 1
            path.write_bytes(renamed[:16] + struct.pack("<Q", count) + renamed[24:begin] + wrong + renamed[begin:])
            refused(path)


def test_refuses_a_file_that_becomes_shorter(tmp_path, model):
    path = tmp_path / "x.gguf"
    path.write_bytes(model)
    file = GgufFile(path)
    assert file.float_rows("output.weight", 0, 3).shape == (3, tiny_models.WIDTH)
    os.truncate(path, 5000)
    with pytest.raises(ValueError, match="the file was changed while it was read"):
        file.float_rows("output.weight", 0, 3)
