"""Large tensors are packed in parts: the same bytes as in one piece, and memory that does not grow with them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import squeeze
from squeeze.checkpoint import quantized as packing
from squeeze.checkpoint.safetensors import ELEMENT_BITS
from squeeze.errors import DamagedError, SqueezeError
from squeeze.packing import codings, container, run, unpack
from squeeze.packing.tensors import archive_payload, content, floats, ulps, zeros
from squeeze.system import parallel
from tests.makers.cases import all_slow_but, every
from tests.makers.checkpoints import same, write
from tests.makers.floats import as_bf16, weights

pytestmark = pytest.mark.usefixtures("in_folder")

VALUES = 150_001  # of some segments, the last one not full


def bytes_of(tensor):
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture
def small_parts(monkeypatch):
    """Everything is large, and a part is as small as can be."""
    for module in (run, unpack, parallel):
        monkeypatch.setattr(module, "LARGE", 1 << 10)
    for module in (content, zeros):
        monkeypatch.setattr(module, "PART", 1 << 16)


def checkpoint(seed=1):
    """A tensor of each kind of coding, with models of one table and of several."""
    generator = np.random.default_rng(seed)
    scale = np.repeat(np.exp(generator.standard_normal(20)), VALUES // 20 + 1)[:VALUES]
    normal = weights(VALUES, seed)
    arrays = {
        "bf16": ("BF16", as_bf16(normal)),
        "tables": ("BF16", as_bf16(normal * scale)),
        "f16": ("F16", normal.astype(np.float16)),
        "f32": ("F32", (normal * scale).astype(np.float32)),
        "lower precision": ("F32", as_bf16(normal).astype(np.uint32) << 16),
        "f64": ("F64", normal.astype(np.float64)),
        "f8": ("F8_E4M3", (as_bf16(normal) >> 4).astype(np.uint8) & 0x3F),
        "constant": ("F32", np.full(VALUES, 1.5, np.float32)),
        "noise": ("U8", generator.integers(0, 256, VALUES, np.uint8)),
        "ids": ("I64", np.arange(VALUES)),
        "codes": ("I32", generator.integers(0, 40, VALUES).astype(np.int32) * 0x01010101),
        "zeros": ("F16", np.where(generator.random(VALUES) < 0.6, 0, normal).astype(np.float16)),
        "few zeros": ("BF16", as_bf16(np.where(generator.random(VALUES) < 0.1, 0, normal))),
        "tiny": ("BF16", as_bf16(normal[:40])),
        "empty": ("F32", np.zeros(0, np.float32)),
    }
    found = {
        name: (dtype, (8 * array.nbytes // ELEMENT_BITS[dtype],), array.tobytes())
        for name, (dtype, array) in arrays.items()
    }
    codes = torch.from_numpy(np.clip(generator.standard_normal((130, 6_400)) * 1.2 + 3.5, 0, 7).astype(np.uint8))
    words = packing.pack(codes, 3)
    for name, laid in (("threes", words), ("threes down", words.T.contiguous()), ("pairs", words[:99].reshape(2, -1))):
        found[name] = ("I32", tuple(laid.shape), laid.numpy().tobytes())
    for name, width in (("fives", 5), ("sevens", 7)):
        middle = 1 << (width - 1)
        wide = np.clip(generator.standard_normal((70, 6_400)) * middle / 4 + middle, 0, 2 * middle - 1)
        words = packing.pack(torch.from_numpy(wide.astype(np.uint8)), width)
        found[name] = ("I32", tuple(words.shape), words.numpy().tobytes())
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", ["fast", "runtime"])
def test_parts_make_no_difference_to_the_bytes(request, level, threads):
    write("a.safetensors", checkpoint())
    squeeze.pack("a.safetensors", "b.safetensors", level=level)
    request.getfixturevalue("small_parts")
    squeeze.pack("a.safetensors", "c.safetensors", level=level, threads=threads)
    assert same("b.safetensors", "c.safetensors")
    squeeze.unpack("c.safetensors", "d.safetensors", threads=threads)
    assert same("a.safetensors", "d.safetensors")


def archived(seed=1):
    """A tensor of each kind of coding at the level archive."""
    names = ("bf16", "f32", "zeros", "noise", "codes", "threes down", "fives", "tiny", "empty")
    return {name: found for name, found in checkpoint(seed).items() if name in names}


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_make_no_difference_to_an_archive(request, threads, monkeypatch):
    monkeypatch.setattr(archive_payload, "SEGMENT", 40_000)
    write("a.safetensors", archived())
    squeeze.pack("a.safetensors", "b.safetensors", level="archive")
    request.getfixturevalue("small_parts")
    squeeze.pack("a.safetensors", "c.safetensors", level="archive", threads=threads)
    assert same("b.safetensors", "c.safetensors")
    squeeze.unpack("c.safetensors", "d.safetensors", threads=threads)
    assert same("a.safetensors", "d.safetensors")
    codings = {record.coding.name for record in container.read(Path("c.safetensors")).description.records}
    assert codings >= {"archive", "zeros+archive", "stored"}


@pytest.mark.usefixtures("small_parts")
def test_differences_from_an_archive(monkeypatch):
    monkeypatch.setattr(archive_payload, "SEGMENT", 40_000)
    first = archived()
    second = {**first, "codes": checkpoint(2)["codes"]}
    for name in ("bf16", "zeros"):
        data = np.frombuffer(first[name][2], np.uint8).copy()
        data[::90] ^= 3
        second[name] = (*first[name][:2], data.tobytes())
    for number, found in enumerate((first, second)):
        write(f"{number}.safetensors", found)
        base = "0.packed.safetensors" if number else None
        squeeze.pack(f"{number}.safetensors", f"{number}.packed.safetensors", base=base, level="archive", threads=2)
    squeeze.unpack("1.packed.safetensors", "back.safetensors", threads=2)
    assert same("back.safetensors", "1.safetensors")


@pytest.mark.usefixtures("small_parts")
def test_loading_in_parts_gives_the_same_tensors():
    write("a.safetensors", checkpoint())
    squeeze.pack("a.safetensors", "b.safetensors")
    loaded = squeeze.load("b.safetensors", threads=2)
    for name, (_, _, data) in checkpoint().items():
        assert bytes_of(loaded[name]) == data


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("threads", all_slow_but([2], [1, 2]))
def test_differences_of_differences_are_restored_in_parts(threads):
    """Each from the one before, the second base packed in turn."""
    names = []
    for number in range(3):
        found = checkpoint()
        for name in ("bf16", "f32"):
            data = np.frombuffer(found[name][2], np.uint8).copy()
            data[:: 100 - number] ^= number
            found[name] = (*found[name][:2], data.tobytes())
        names.append(f"{number}.safetensors")
        write(names[-1], found)
    squeeze.pack("0.safetensors", "0.packed.safetensors", threads=threads)
    for number in (1, 2):
        base = f"{number - 1}.packed.safetensors"
        squeeze.pack(names[number], f"{number}.packed.safetensors", base=base, threads=threads)
    records = container.read(Path("2.packed.safetensors")).description.records
    assert sum(record.coding.name == "delta+rans" for record in records) >= 2
    squeeze.unpack("2.packed.safetensors", "back.safetensors", threads=threads)
    assert same("back.safetensors", "2.safetensors")
    loaded = squeeze.load("2.packed.safetensors")
    assert bytes_of(loaded["f32"]) == bytes_of(safetensors.torch.load_file("2.safetensors")["f32"])


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("threads", [1, 2])
def test_differences_in_ulps_are_restored_in_parts(threads, monkeypatch):
    """Three checkpoints form a chain of training steps, in other parts than the base's."""
    monkeypatch.setattr(ulps, "PART", 50_000)
    values = weights(VALUES)
    for number in range(3):
        values = values + np.random.default_rng(number).normal(0, 1e-5, VALUES)
        arrays = {"bf16": ("BF16", as_bf16(values)), "f32": ("F32", values.astype(np.float32))}
        write(
            f"{number}.safetensors", {name: (kind, (VALUES,), data.tobytes()) for name, (kind, data) in arrays.items()}
        )
        base = f"{number - 1}.packed.safetensors" if number else None
        squeeze.pack(f"{number}.safetensors", f"{number}.packed.safetensors", base=base, threads=threads)
    records = container.read(Path("2.packed.safetensors")).description.records
    assert [record.coding.name for record in records] == ["ulps"] * 2
    squeeze.unpack("2.packed.safetensors", "back.safetensors", threads=threads)
    assert same("back.safetensors", "2.safetensors")
    loaded = squeeze.load("2.packed.safetensors")
    assert bytes_of(loaded["f32"]) == bytes_of(safetensors.torch.load_file("2.safetensors")["f32"])


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("level", every(2, ["fast", "runtime"]))
def test_damage_is_found_in_parts(level):
    write("a.safetensors", checkpoint())
    squeeze.pack("a.safetensors", "b.safetensors", level=level)
    for tensor in container.read(Path("b.safetensors")).file.tensors:
        for place in (0, 1, tensor.size // 2) if tensor.size else ():
            hurt = bytearray(Path("b.safetensors").read_bytes())
            hurt[tensor.begin + place] ^= 0x11
            Path("hurt.safetensors").write_bytes(hurt)
            with pytest.raises(DamagedError, match=f"tensor {tensor.name!r}"):
                squeeze.verify("hurt.safetensors", threads=2)


@pytest.mark.usefixtures("small_parts")
def test_damage_is_found_in_parts_of_an_archive():
    write("a.safetensors", {name: found for name, found in archived().items() if name in ("bf16", "zeros")})
    squeeze.pack("a.safetensors", "b.safetensors", level="archive")
    for tensor in container.read(Path("b.safetensors")).file.tensors:
        for place in (0, 9, 33, tensor.size // 2):
            hurt = bytearray(Path("b.safetensors").read_bytes())
            hurt[tensor.begin + place] ^= 0x11
            Path("hurt.safetensors").write_bytes(hurt)
            with pytest.raises(DamagedError, match=f"tensor {tensor.name!r}"):
                squeeze.verify("hurt.safetensors", threads=2)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("change", [None, "byte", "cut"])
def test_a_stopped_pack_continues(monkeypatch, change):
    write("a.safetensors", checkpoint())
    original, begun = codings.encode, []

    def stop(subject, *rest):
        begun.append((subject.form, subject.bits))
        if len(begun) == 5:
            raise KeyboardInterrupt
        return original(subject, *rest)

    monkeypatch.setattr(codings, "encode", stop)
    with pytest.raises(KeyboardInterrupt):
        squeeze.pack("a.safetensors", "b.safetensors")
    unfinished = Path(".b.safetensors.packing/content.partial")
    if change == "byte":
        data = bytearray(unfinished.read_bytes())
        data[-5_000] ^= 1
        unfinished.write_bytes(data)
    elif change == "cut":
        os.truncate(unfinished, unfinished.stat().st_size - 100)
    squeeze.pack("a.safetensors", "b.safetensors")
    assert (begun.count(begun[3]) == 1) == (change is None)
    squeeze.unpack("b.safetensors", "c.safetensors")
    assert same("a.safetensors", "c.safetensors")


@pytest.mark.usefixtures("small_parts")
def test_verification_finds_a_fault_of_the_machine(monkeypatch):
    write("a.safetensors", checkpoint())
    original = floats.decode_with

    def decode(coded, slots, out):
        original(coded, slots, out)
        out[-1] ^= 1

    monkeypatch.setattr(floats, "decode_with", decode)
    with pytest.raises(SqueezeError, match="memory or processor is faulty"):
        squeeze.pack("a.safetensors", "b.safetensors")
    assert not Path("b.safetensors").exists()


@pytest.mark.usefixtures("small_parts")
def test_a_source_that_gets_shorter_is_an_error(monkeypatch):
    path = write("a.safetensors", checkpoint())
    original = codings.encode

    def cut(*rest):
        os.truncate(path, 100_000)
        return original(*rest)

    monkeypatch.setattr(codings, "encode", cut)
    with pytest.raises(DamagedError, match="became shorter while it was read"):
        squeeze.pack("a.safetensors", "b.safetensors")
    assert not Path("b.safetensors").exists()


def peak(code: str) -> int:
    """The most memory, in MiB, that a process of its own took after its imports and a small run."""
    warm = "import resource, squeeze; squeeze.pack('small.safetensors', 'p.safetensors', level=LEVEL, threads=2)\n"
    warm += "squeeze.unpack('p.safetensors', 'u.safetensors', threads=2)\n"
    read = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024"
    whole = f"LEVEL = 'runtime'\n{warm}before = {read}\n{code}\nprint({read} - before)"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    for name in ("p.safetensors", "u.safetensors"):
        Path(name).unlink()
    return int(done.stdout)


def test_memory_does_not_grow_with_a_tensor():
    count = 40 << 20  # of two bytes
    write("small.safetensors", checkpoint())
    values = np.resize(as_bf16(weights(1 << 20)), count)
    write("a.safetensors", {"a": ("BF16", (count,), values.tobytes())})
    assert peak("squeeze.pack('a.safetensors', 'b.safetensors', threads=2)") < 64
    assert peak("squeeze.unpack('b.safetensors', 'c.safetensors', threads=2)") < 64
    assert same("a.safetensors", "c.safetensors")
