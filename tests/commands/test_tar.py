"""`tar --use-compress-program=squeeze`, and the arguments that it gives."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import squeeze
from squeeze.system.notices import COMPILING
from tests.makers.command import TEXT, run, usage_error

pytestmark = pytest.mark.usefixtures("in_folder")


def filtered(data, *arguments):
    done = subprocess.run([sys.executable, "-m", "squeeze", *arguments], input=data, capture_output=True, check=True)
    assert done.stderr.decode() in ("", f"{COMPILING}\n")
    return done.stdout


def test_options_alone_make_a_filter():
    for coded in (filtered(TEXT), run("-1", stdin=TEXT).stdout_bytes):
        for words in (("-d",), ("-1", "-d"), ("--decompress",)):
            assert run(*words, stdin=coded).stdout_bytes == TEXT
    assert coded == squeeze.compress(TEXT, 1)


def test_without_standard_input_it_is_not_a_filter():
    done = subprocess.run(
        [sys.executable, "-m", "squeeze"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "Usage: " in done.stderr + done.stdout
    assert usage_error("-d", "-x").startswith("Error: No such option")


@pytest.mark.skipif(shutil.which("tar") is None, reason="tar is not installed")
@pytest.mark.parametrize("level", ["", " -1"])
def test_tar_uses_the_command_in_both_directions(level):
    Path("squeeze").write_text(f'#!/bin/sh\nexec {sys.executable} -m squeeze "$@"\n')
    Path("squeeze").chmod(0o755)
    for name in ("tree/a", "tree/sub/b"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(TEXT)
    program = f"--use-compress-program={Path('squeeze').resolve()}{level}"
    subprocess.run(["tar", program, "-cf", "tree.tar.sqz", "tree"], check=True)
    assert squeeze.decompress(Path("tree.tar.sqz").read_bytes()).count(TEXT) == 2
    Path("tree").rename("before")
    listed = subprocess.run(["tar", program, "-xvf", "tree.tar.sqz"], check=True, capture_output=True, text=True)
    assert Path("tree/sub/b").read_bytes() == TEXT
    assert "tree/sub/b" in listed.stdout.split()
