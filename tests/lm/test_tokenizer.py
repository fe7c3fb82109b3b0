"""Any bytes become tokens and come back; special tokens are ordinary text; tokens are what the model expects."""

import json
import sys

import gguf
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings, strategies as st

from squeeze.errors import ModelError, PackageError
from squeeze.lm import vocabulary
from squeeze.lm.tokenizer import Tokenizer
from tests.makers import inputs, tiny_models

TEXT = tiny_models.TRAINING_TEXT


def tokenizer_of(description: str, size: int | None = None) -> tuple[Tokenizer, list[bytes]]:
    parsed = json.loads(description)
    vocabulary.check("tiny", parsed)
    size = size or max(vocabulary.entries(parsed).values()) + 1
    tokens, leaves = vocabulary.spell(parsed, size)
    return Tokenizer(tokens, leaves, description), [tokens[i] for i in leaves]


def from_gguf(tmp_path, tokenizer: tokenizers.Tokenizer) -> str:
    writer = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    tiny_models.add_vocabulary(writer, tokenizer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    fields = gguf.GGUFReader(tmp_path / "vocabulary.gguf").fields
    return vocabulary.from_gguf("tiny", {key: field.contents() for key, field in fields.items()})


@pytest.fixture(scope="module")
def libraries() -> dict[str, tokenizers.Tokenizer]:
    return {"byte level": tiny_models.byte_level(), "SentencePiece": tiny_models.sentence_piece()}


@pytest.fixture(scope="module", params=["byte level", "SentencePiece", "GGUF byte level", "GGUF SentencePiece"])
def tokenizer(request, libraries, tmp_path_factory) -> Tokenizer:
    library = libraries[request.param.removeprefix("GGUF ")]
    if request.param.startswith("GGUF"):
        return tokenizer_of(from_gguf(tmp_path_factory.mktemp("gguf"), library))[0]
    return tokenizer_of(library.to_str())[0]


CASES = {**inputs.EDGE_CASES, "random, then text": inputs.random_bytes(5_000) + TEXT[:60_000]}
CASES |= {
    "SentencePiece's space": "a\u2581b \u2581\u2581 c".encode() * 3,
    "NFD and NFC": "e\u0301 \u00e9 \u212b \ufb01".encode() * 5,
    "no place to cut": "日本語".encode() * 20_000,
    "byte tokens": b"<0x41><0x0A><unk><s></s>[INST]",
    "byte order mark": b"\xef\xbb\xbftext\xff\xfe",
    "other spaces": "\u00a0\u2003\u3000\u200b \t\v\f\x85".encode() * 4,
    "surrogates": b"\xed\xa0\x80\xed\xb0\x80\xed\xb2\x80",
}


@pytest.mark.parametrize("case", CASES)
def test_any_bytes_come_back(tokenizer, case):
    entries = tokenizer.encode(CASES[case])
    assert entries.dtype == np.int32 and entries.ndim == 1
    assert tokenizer.decode(entries) == CASES[case]


@settings(max_examples=50)
@given(data=st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode)))
def test_any_generated_bytes_come_back(tokenizer, data):
    assert tokenizer.decode(tokenizer.encode(data)) == data


def test_text_needs_no_escapes(tokenizer):
    entries = tokenizer.encode(TEXT)
    assert (entries >= 0).all() and len(entries) < len(TEXT) * 0.7


def test_tokens_are_those_of_the_library(libraries):
    """Cutting long input into pieces, and leaving out normalisers, changes nothing in plain text."""
    for library in libraries.values():
        ours, spelling = tokenizer_of(library.to_str())
        theirs = library.encode(TEXT.decode(), add_special_tokens=False).ids
        tokens, _ = vocabulary.spell(json.loads(library.to_str()), library.get_vocab_size())
        assert [spelling[i] for i in ours.encode(b" " + TEXT)] == [tokens[i] for i in theirs]


def test_gguf_gives_the_same_tokens(libraries, tmp_path):
    for library in libraries.values():
        ours, theirs = tokenizer_of(library.to_str())[0], tokenizer_of(from_gguf(tmp_path, library))[0]
        assert np.array_equal(ours.encode(TEXT), theirs.encode(TEXT))


def test_names_of_special_tokens_are_text(tokenizer):
    for name in (b"<|endoftext|>", b"<|im_start|>", b"<s>", b"</s>", b"<unk>"):
        assert len(tokenizer.encode(name)) > 1


def test_added_tokens_may_be_text(libraries):
    """They may lie past the vocabulary, in any order, and take no other token's number."""
    description = json.loads(libraries["byte level"].to_str())
    size = len(description["model"]["vocab"])
    exact = {"single_word": False, "lstrip": True, "rstrip": False, "normalized": True, "special": False}
    description["added_tokens"] += [
        {"id": size + 5, "content": "<think>", **exact},
        {"id": size + 2, "content": "def  ", **exact},
        {"id": size + 90, "content": "<beyond the embedding>", **exact},
    ]
    tokenizer, spelling = tokenizer_of(json.dumps(description), size + 8)
    data = b"x  <think> def  f <beyond the embedding> <think>"
    entries = tokenizer.encode(data)
    assert tokenizer.decode(entries) == data
    spelt = [spelling[i] for i in entries]
    assert spelt.count(b"<think>") == 2 and b"def  " in spelt and b"<beyond the embedding>" not in spelling


def test_unigram_tokenizers_are_supported():
    pieces = [
        "<unk>",
        "\u2581the",
        "\u2581",
        "t",
        "h",
        "e",
        "the",
        "\u2581c",
        "a",
        "at",
        *(f"<0x{b:02X}>" for b in range(256)),
    ]
    scores = [0.0, -1.0, -2.0, -5.0, -5.0, -5.0, -2.5, -3.0, -4.0, -3.0, *[-9.0] * 256]
    library = tokenizers.Tokenizer(
        tokenizers.models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=0, byte_fallback=True)
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer, spelling = tokenizer_of(library.to_str())
    assert [spelling[i] for i in tokenizer.encode(b" the cat")] == [b" the", b" c", b"at"]
    for data in inputs.EDGE_CASES["all bytes"], inputs.EDGE_CASES["other scripts"]:
        assert tokenizer.decode(tokenizer.encode(data)) == data


def test_spelling_prefers_tokens_to_byte_fallback():
    model = {"type": "BPE", "vocab": {"<unk>": 0, "<0x61>": 1, "a": 2, "b": 3, "\u2581": 4}, "merges": []}
    model |= {"byte_fallback": True, "unk_token": "<unk>"}
    added = [{"id": 5, "content": "b", "special": False}, {"id": 6, "content": "</s>", "special": True}]
    description = {"model": model, "added_tokens": added, "decoder": {"type": "Replace", "content": "\u2581"}}
    tokens, leaves = vocabulary.spell(description, 9)
    assert tokens == (b"", b"a", b"a", b"b", b" ", b"b", b"", b"", b"")
    assert leaves.tolist() == [4, 2, 3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tiny: a tokenizer of the kind 'bert' is not supported; gpt2 and llama are"),
        ({"tokenizer.ggml.pre": "chameleon"}, "tiny: the pre-tokenizer 'chameleon' is not supported"),
    ],
)
def test_refuses_unsupported_gguf_tokenizers(fields, message):
    known = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.merges": []}
    with pytest.raises(ModelError) as error:
        vocabulary.from_gguf("tiny", known | fields)
    assert str(error.value) == message


def test_decoding_needs_no_library(libraries, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    ours, spelling = tokenizer_of(libraries["byte level"].to_str())
    assert ours.decode(np.array([7, -1 - 65, 9])) == spelling[7] + b"A" + spelling[9]
    with pytest.raises(PackageError, match="needs tokenizers, which is not installed: pip install --no-deps"):
        ours.encode(b"a")


def test_refuses_unsupported_tokenizers():
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(ModelError, match="a tokenizer of the kind 'WordPiece' is not supported"):
        tokenizer_of(library.to_str())


@pytest.mark.parametrize("pre", [name for names in vocabulary._PRE_TOKENIZERS.values() for name in names])
def test_every_pre_tokenizer_is_understood(pre, libraries):
    description = json.loads(libraries["byte level"].to_str())["model"]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": sorted(description["vocab"], key=description["vocab"].__getitem__),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in description["merges"]],
    }
    tokenizer, _ = tokenizer_of(vocabulary.from_gguf("tiny", fields))
    data = "It's 12345 DON'T  stop!!\n\n\tx = y+1 ; été ".encode()
    assert tokenizer.decode(tokenizer.encode(data)) == data
