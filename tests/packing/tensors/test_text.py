"""Texts among the bytes of a checkpoint: found by samples, coded in pieces, and restored byte for byte."""

import bz2
import struct

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

import squeeze
from squeeze.errors import DamagedError
from squeeze.packing import container
from squeeze.packing.safe_open import safe_open
from squeeze.packing.tensors import floats, text
from squeeze.packing.tensors.content import InMemory, whole
from squeeze.packing.tensors.float_writer import in_memory

LINES = [b"%d times %d is %d; " % (a, b, a * b) for a in range(250) for b in range(250)]
WORDS = np.frombuffer(b"".join(LINES), np.uint8)


def encode(data):
    return in_memory(lambda writer: text.write(InMemory(data), writer, 2))


def is_text(data):
    return text.is_text(InMemory(data), lambda: floats.estimate(data, "U8"))


def test_texts_of_several_pieces_are_restored_in_parts():
    assert WORDS.size > text.PIECE
    payload = encode(WORDS)
    assert payload.size % 8 == 0
    assert payload.size < 0.3 * WORDS.size
    content = text.DecodedText(InMemory(payload), WORDS.size)
    assert np.array_equal(whole(content, 2), WORDS)
    out = np.empty(1000, np.uint8)
    content.fill(text.PIECE - 500, out)
    assert np.array_equal(out, WORDS[text.PIECE - 500 :][:1000])


def test_a_piece_that_does_not_shrink_is_stored():
    noise = np.random.default_rng(0).integers(0, 256, 2 * text.PIECE, np.uint8)
    noise[: text.PIECE] = WORDS[: text.PIECE]
    payload = encode(noise)
    assert payload.size < noise.size
    assert np.array_equal(whole(text.DecodedText(InMemory(payload), noise.size)), noise)


def test_codes_and_short_tensors_are_no_texts():
    drawn = np.random.default_rng(0).normal(128, 20, 1 << 16).astype(np.uint8)
    assert is_text(WORDS)
    assert not is_text(drawn)
    assert not is_text(np.sort(drawn)[:0])
    assert not is_text(WORDS[:100])


@pytest.mark.parametrize("padded", [slice(0), slice(-20_000, None), slice(290_000, 310_000), slice(20_000)])
def test_codes_with_padding_are_no_texts(padded):
    """Check that equal bytes at the place of one sample do not make bzip2 the coding of all others."""
    drawn = np.clip(np.random.default_rng(0).normal(128, 12, 600_000), 0, 255).astype(np.uint8)
    drawn[padded] = 128
    assert not is_text(drawn)


@pytest.mark.parametrize("size", [5_000, 20_000, 40_000, 50_000])
def test_samples_of_short_codes_do_not_overlap(size):
    drawn = np.clip(np.random.default_rng(0).normal(128, 12, size), 0, 255).astype(np.uint8)
    assert not is_text(drawn)
    assert is_text(WORDS[:size])


def test_probes_tell_masks_and_indices_from_weights():
    rng = np.random.default_rng(0)
    mask = np.where(np.tril(np.ones((256, 256), bool)), 0, -np.inf).astype(np.float32)
    indices = np.flatnonzero(rng.random(1 << 16) < 0.1) % 256
    weights = rng.normal(0, 0.02, 1 << 14).astype(np.float32)
    codes = (rng.normal(0, 2, 1 << 14).round() / 64).astype(np.float32)
    for data in (mask, indices.astype(np.int64)):
        assert text.may_repeat(InMemory(data.view(np.uint8).reshape(-1)))
    for data in (weights, weights.astype(np.float16), rng.integers(0, 1 << 30, 1 << 12)):
        assert not text.may_repeat(InMemory(data.view(np.uint8)))
    assert not text.may_repeat(InMemory(codes.view(np.uint8)[:1000]))


@pytest.mark.parametrize("level", ["runtime", "archive"])
@pytest.mark.parametrize("kind", ["BOOL", "F16", "F32", "I64"])
def test_masks_and_indices_are_coded_as_texts(level, kind, tmp_path):
    lower = np.tril(np.ones((256, 256), bool))
    data = {
        "BOOL": lower,
        "F16": np.where(lower, 0, -65504).astype(np.float16),
        "F32": np.where(lower, 0, -np.inf).astype(np.float32),
        "I64": (np.arange(1 << 14) // 3 * 7 % 1000).astype(np.int64),
    }[kind]
    source, packed, back = (tmp_path / f"{name}.safetensors" for name in ("source", "packed", "back"))
    save_file({"t": data}, source)
    squeeze.pack(source, packed, level=level)
    assert container.read(packed).description.records[0].coding.name == "text"
    squeeze.unpack(packed, back)
    assert back.read_bytes() == source.read_bytes()
    with safe_open(packed, "np") as opened:
        assert np.array_equal(opened.get_slice("t")[100:130], data[100:130])


def fault(payload, name):
    payload = payload.copy()
    if name == "flipped":
        payload[100] ^= 255
    if name == "format":
        payload[0] = 2
    if name == "lengths":
        payload[8] ^= 8
    if name == "others":  # a piece of more bytes than it should have
        coded = bz2.compress(WORDS[: text.PIECE + 1].tobytes())
        return np.frombuffer(struct.pack("<III", 1, 0, len(coded)) + coded + bytes(-(12 + len(coded)) % 8), np.uint8)
    return payload[: payload.size - 8 * (name == "short")]


@pytest.mark.parametrize("name", ["flipped", "format", "lengths", "others", "short"])
def test_damage_is_told(name):
    data = WORDS[: text.PIECE]
    with pytest.raises(DamagedError):
        whole(text.DecodedText(InMemory(fault(encode(data), name)), data.size))


def test_the_vocabulary_of_a_gguf_file_is_a_text(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_token_list([f"token {number * number}" for number in range(20_000)])
    writer.add_tensor("w", np.random.default_rng(0).normal(0, 1, (64, 64)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for level in ("fast", "runtime", "archive"):
        packed, back = tmp_path / f"{level}.gguf", tmp_path / "back.gguf"
        squeeze.pack(tmp_path / "m.gguf", packed, level=level)
        assert container.read(packed).description.records[0].coding.name == "text"
        squeeze.unpack(packed, back, overwrite=True)
        assert back.read_bytes() == (tmp_path / "m.gguf").read_bytes()
