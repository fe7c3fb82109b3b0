"""The cost of a hostile packed file: limits are checked before memory is allocated, and nothing else is read or run."""

import hashlib
import json
import tracemalloc
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import xxhash
from click.testing import CliRunner

import squeeze
from squeeze import cli
from squeeze.errors import LimitError
from squeeze.packing import container
from squeeze.packing.codings import CODINGS
from squeeze.packing.description import Description
from squeeze.packing.record import Record
from squeeze.packing.tensors.float_payload import FORMAT, HEAD, PLANE
from squeeze.system.limits import Limits
from tests.checkpoint.test_safetensors import header
from tests.makers.audit import news
from tests.makers.checkpoints import model_folder, write

SIZE = 1 << 32


pytestmark = pytest.mark.usefixtures("in_folder")


def claim(coding="rans", size=SIZE):
    """A small packed file of a tensor of `size` zeros."""
    payload = HEAD.pack(FORMAT, 0, 0, 6, 4096, size) + PLANE.pack(8, 0, 0, 0, 2, 0) + bytes(8)
    original = header({"a": {"dtype": "F8_E5M2", "shape": [size], "data_offsets": [0, size]}})
    record = Record("F8_E5M2", (size,), CODINGS[coding], xxhash.xxh3_64_intdigest(b""))
    description = Description(len(original) + size, hashlib.sha256(b"").hexdigest(), original, "runtime", (record,))
    packed = container.header_bytes(["a"], [len(payload)], description.to_text()) + payload
    Path("claim.safetensors").write_bytes(packed)
    assert Path("claim.safetensors").stat().st_size < 800


READERS = {
    "unpack": lambda limits: squeeze.unpack("claim.safetensors", "back.safetensors", limits=limits),
    "verify": lambda limits: squeeze.verify("claim.safetensors", limits=limits),
    "load": lambda limits: squeeze.load("claim.safetensors", limits=limits),
}


@pytest.mark.parametrize(("reader", "coding"), [("load", "rans"), *product(READERS, ("archive", "zeros+rans"))])
def test_limits_are_checked_before_memory_is_allocated(reader, coding):
    claim(coding)
    with pytest.raises(LimitError):
        READERS[reader](Limits(memory=1))  # imports all that reading takes
    memory = 1 << 30 if reader == "load" else 1 << 26  # others decode in parts
    tracemalloc.start()
    for limits, words in (
        (
            Limits(memory=memory),
            rf"claim.safetensors: .* bytes of memory, and the limit is {memory:,}: ",
        ),
        (Limits(1 << 40, output=1000), r"claim.safetensors: .* bytes or more would be written, and the limit is 1,000"),
    ):
        with pytest.raises(LimitError, match=words):
            READERS[reader](limits)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 22
    assert [path.name for path in Path().iterdir()] == ["claim.safetensors"]


@pytest.mark.parametrize(
    ("coding", "words"),
    [("rans", "checksum differs"), ("archive", "coding is unknown"), ("zeros+rans", "zeros do not fit")],
)
def test_a_claim_that_is_decoded_in_parts_takes_little_memory(coding, words):
    claim(coding, size=1 << 28)
    with pytest.raises(squeeze.DamagedError, match=words):
        squeeze.verify("claim.safetensors", limits=Limits(memory=1 << 27 if coding != "archive" else 1 << 29))
    with pytest.raises(LimitError, match=r"claim.safetensors: .* bytes of memory, and the limit is 67,108,864"):
        squeeze.verify("claim.safetensors", limits=Limits(memory=1 << 26))


def test_sufficient_limits_change_nothing():
    claim(size=1 << 16)
    limits = Limits(memory=1 << 18, output=1 << 17)
    with pytest.raises(squeeze.DamagedError, match="checksum"):
        squeeze.verify("claim.safetensors", limits=limits)
    model_folder("model")
    squeeze.pack("model", "packed")
    whole = sum(path.stat().st_size for path in Path("model").rglob("*") if path.is_file())
    squeeze.unpack("packed", "back", limits=Limits(output=whole))
    with pytest.raises(LimitError, match=f"{whole:,} bytes or more would be written"):
        squeeze.verify("packed", limits=Limits(output=whole - 1))


@pytest.mark.parametrize("command", ["unpack", "verify"])
def test_the_commands_take_limits(command):
    claim("archive")
    for option, value in (("--memlimit", "64M"), ("--max-output", "1K")):
        arguments = [command, option, value, "claim.safetensors", *(["back.safetensors"] * (command == "unpack"))]
        result = CliRunner().invoke(cli.main, arguments, prog_name="squeeze")
        assert result.exit_code == 1
        assert result.stderr.count("\n") == 1 and result.stderr.startswith("Error: claim.safetensors: ")
        assert f"raise it with {option}" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["claim.safetensors"]


def test_limits_hold_for_files_kept_in_a_manifest():
    model_folder("model")
    Path("model/config.json").write_text('{"model_type": "llama"}' + " " * (8 << 20))
    squeeze.pack("model", "packed")
    with pytest.raises(LimitError, match=r"squeeze.json: 'config.json' needs .* bytes of memory"):
        squeeze.verify("packed", limits=Limits(memory=1 << 22))


def test_nothing_else_is_read_or_run(tmp_path):
    write("a.safetensors", {"a": ("BF16", (64, 64), np.arange(4096, dtype=np.uint16).tobytes())})
    model_folder("model")
    for level in ("fast", "runtime", "archive"):
        squeeze.pack("a.safetensors", f"{level}.safetensors", level=level)
    squeeze.pack("model", "packed")
    squeeze.pack("a.safetensors", "delta.safetensors", base="a.safetensors")
    code = "\n".join([
        "import squeeze",
        f"import os; os.chdir({str(tmp_path)!r})",
        "for name in ('fast.safetensors', 'runtime.safetensors', 'archive.safetensors', 'packed'):",
        "    squeeze.verify(name)",
        "    squeeze.unpack(name, f'{name}.back')",
        "squeeze.verify('delta.safetensors', base='a.safetensors', threads=2)",
    ])  # fmt: skip
    assert news(code, [tmp_path], refused=["torch", "transformers", "requests"]) == []


def test_loading_reads_and_runs_nothing_else(tmp_path):
    model_folder("model")
    squeeze.pack("model", "packed")
    code = f"import squeeze\nprint({{n: x.shape for n, x in squeeze.load({str(tmp_path / 'packed')!r}).items()}})"
    assert news(code, [tmp_path], refused=["transformers", "requests"]) == []


def test_messages_escape_names_in_a_manifest():
    model_folder("model")
    squeeze.pack("model", "packed")
    manifest = json.loads(Path("packed/squeeze.json").read_text())
    manifest["files"]["a\x1b[31m\nb"] = "0" * 64
    Path("packed/squeeze.json").write_text(json.dumps(manifest))
    with pytest.raises(squeeze.DamagedError, match=r"packed: a\\x1b\[31m\\nb is missing from the packed folder"):
        squeeze.verify("packed")
