"""Samples from wheels: of every file suffix, of programs only, and what models learn from them."""

import lzma
import zipfile

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load

from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.room import Room
from squeeze.codecs.stream import blocks
from tests.makers import inputs, programs
from training import mixers, wheels


@pytest.fixture
def folder(tmp_path):
    with zipfile.ZipFile(tmp_path / "made-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for number in range(4):
            wheel.writestr(f"made/part{number}.py", inputs.python_text(3_000 + number))
            wheel.writestr(f"made/part{number}.json", b'{"part": %d, "of": [1, 2]}\n' % number * 90)
        wheel.writestr("made/short.py", b"pass\n")
        wheel.writestr("made/noise.bin", inputs.random_bytes(5_000))
        wheel.writestr("made/calls.so", programs.elf(functions=150))
    return tmp_path


def test_texts_are_of_every_ending_and_generated_and_the_same_again(folder):
    chosen, again = (wheels.samples(folder, "text", 150_000) for _ in range(2))
    assert all(np.array_equal(*pair) for pair in zip(chosen, again, strict=True))
    assert 150_000 <= sum(piece.size for piece in chosen) < 150_000 + (1 << 15)
    assert {blocks.content(piece).kind for piece in chosen} == {"text"}
    begin = [piece[:8].tobytes() for piece in chosen]
    assert begin.count(b'{"part":') == begin.count(inputs.python_text(8)) == 4  # what is short is left out
    assert len(begin) > 8  # logs, tables, records


def test_programs_are_pieces_with_absolute_calls(folder):
    chosen = wheels.samples(folder, "executable", 1 << 20)
    image = programs.elf(functions=150)
    found = Program().open(image, 0, Room(1 << 20))
    assert found and [piece.size >= 4_096 for piece in chosen] == [True]
    assert chosen[0].tobytes() in found.content.tobytes() and chosen[0].tobytes() not in image


@pytest.mark.parametrize(("kind", "level"), [("text", 1), ("executable", 4)])
def test_the_command_writes_what_models_begin_with(kind, level, folder):
    words = [
        "--wheels",
        str(folder),
        "--kind",
        kind,
        "--level",
        str(level),
        "--megabytes",
        "0.02",
        "--into",
        str(folder),
    ]
    run = CliRunner().invoke(mixers.main, words)
    assert run.exit_code == 0, run.output
    written = next(folder.glob(f"{kind}.{level}.*"))
    found = load(lzma.decompress(written.read_bytes()) if written.suffix == ".xz" else written.read_bytes())
    assert len(found) == (7 if level == 1 else 14) and any(tensor.any() for tensor in found.values())


def test_the_command_refuses_a_wrong_choice_of_corpus_or_wheels(folder):
    for words in (
        [],
        ["--wheels", str(folder), "--corpus", str(folder)],
        ["--corpus", str(folder), "--kind", "executable"],
    ):
        run = CliRunner().invoke(mixers.main, words)
        assert run.exit_code == 2 and "give either --wheels, or --corpus for text" in run.output
