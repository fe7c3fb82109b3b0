"""Small tensors that share a payload: sizes, every reader, and a decoder written from docs/format.md, section 10.14."""

import base64
import json
import pickle
import re
import zlib
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import save_file

import squeeze
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, FormatError
from squeeze.packing import bundles, bundling, container, parts
from squeeze.packing.base import Base
from squeeze.packing.bundles import MOST_BYTES, Bundle, Layout
from squeeze.packing.coding import flat
from squeeze.packing.codings import CODINGS
from squeeze.packing.short_header import lengthened, shortened
from squeeze.packing.sources import source_of
from squeeze.packing.tensors.content import InFile
from squeeze.recipes.measure.inspect import packed_sizes
from tests.fuzz import tensorfiles

BITS = {"BF16": 16, "F32": 32, "I64": 64, "U8": 8}


def tensors(seed: int = 0, count: int = 300) -> dict[str, torch.Tensor]:
    """Return norms near 1, biases near 0, some empty or of other dtypes, and a matrix."""
    generator, found = torch.Generator().manual_seed(seed), {}
    for k in range(count):
        values = torch.randn(8 + 7 * k % 500, generator=generator) * 0.02 + k % 2
        found[f"layers.{k:03d}.norm"] = values.bfloat16() if k % 5 else values
    found["matrix"] = torch.randn((64, 80), generator=generator).bfloat16()
    return found | {
        "empty": torch.zeros(0),
        "scalar": torch.tensor(3.0),
        "steps": torch.arange(5),
        "flags": torch.ones(3).byte(),
    }


def saved(path: Path, found: dict[str, torch.Tensor]) -> Path:
    save_file(found, path)
    return path


@pytest.fixture
def packed(tmp_path):
    squeeze.pack(saved(tmp_path / "a.safetensors", tensors()), tmp_path / "b.safetensors")
    return tmp_path / "b.safetensors"


def naive_offsets(text: bytes) -> bytes:
    """Return the header of a short form, section 10.1."""
    end = 0

    def put(found):
        nonlocal end
        sizes = [int(size) for size in found[2].decode().split(",") if size]
        offsets = found[3] or f"{end},{end + prod(sizes) * BITS[found[1].decode()] // 8}".encode()
        end = int(offsets.split(b",")[1])
        return found[0][: found.start(3) - found.start()] + offsets + b"]"

    return re.sub(rb'"dtype":"(\w+)","shape":\[([\d,]*)\],"data_offsets":\[([\d,]*)\]', put, text)


def naive(path: Path) -> bytes:
    """Return the original of a packed file without a base, by docs/format.md."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:start])
    metadata = entries.pop("__metadata__")
    payloads = sorted((entry["data_offsets"], name) for name, entry in entries.items())
    text = metadata["squeeze"].encode()
    named = b"".join(
        b"\0" + name.encode() + b"\0" + (end - begin).to_bytes(8, "little") for (begin, end), name in payloads
    )
    assert xxhash.xxh3_64_hexdigest(text + named) == metadata["squeeze.checksum"]
    described = json.loads(text if text[:1] == b"{" else zlib.decompress(base64.b64decode(text)))
    header = naive_offsets(zlib.decompress(base64.b64decode(described["header"])))
    originals = [(name, entry) for name, entry in json.loads(header[8:]).items() if name != "__metadata__"]
    originals.sort(key=lambda item: item[1]["data_offsets"])
    out, place = header, 0
    for ((begin, end), name), entry in zip(payloads, described["tensors"], strict=True):
        payload = np.frombuffer(data[start + begin : start + end], np.uint8).copy()
        assert originals[place][0] == name
        if isinstance(entry, list):
            dtype, shape, coding, checksum = entry
            size = prod(shape) * BITS[dtype] // 8
            pieces, checksums = [CODINGS[coding].decode(payload, flat(dtype, size), None, 1).tobytes()], [checksum]
        else:
            checksums = re.findall("." * 16, entry["checksums"])
            pieces = naive_bundle(payload, entry, [one for _, one in originals[place : place + len(checksums)]])
        assert [xxhash.xxh3_64_hexdigest(piece) for piece in pieces] == checksums
        place, out = place + len(pieces), out + b"".join(pieces)
    return out


def naive_bundle(payload, entry, originals) -> list[bytes]:
    classes = [int(one) for one in entry.get("classes", "0" * len(originals))]
    sizes = [prod(one["shape"]) * BITS[one["dtype"]] // 8 for one in originals]
    at, decoded = 0, []
    for number, (coding, size) in enumerate(zip(entry["codings"], entry["sizes"], strict=True)):
        raw = sum(one for one, kind in zip(sizes, classes, strict=True) if kind == number)
        form = flat(originals[0]["dtype"], raw)
        decoded.append(CODINGS[coding].decode(payload[at : at + size].copy(), form, None, 1).tobytes())
        at += size + -size % 8
    assert at == payload.size
    places, found = [0] * len(decoded), []
    for size, kind in zip(sizes, classes, strict=True):
        found.append(decoded[kind][places[kind] : places[kind] + size])
        places[kind] += size
    return found


def test_small_tensors_share_payloads_and_come_back(packed, tmp_path):
    original = tmp_path / "a.safetensors"
    assert len(tensorfile.read(packed).tensors) < 20
    assert packed.stat().st_size < 0.62 * original.stat().st_size
    squeeze.verify(packed)
    squeeze.unpack(packed, tmp_path / "c.safetensors", threads=2)
    assert (tmp_path / "c.safetensors").read_bytes() == original.read_bytes() == naive(packed)


def test_classes_of_tensors_are_coded_apart(packed):
    layouts = {
        record.coding.bundle.layout for record in container.read(packed).description.records if record.coding.is_member
    }
    assert max(len(layout.codings) for layout in layouts) > 1  # near 1, near 0


@pytest.mark.parametrize("level", ["fast", "archive"])
def test_other_levels(level, tmp_path):
    source = saved(tmp_path / "a.safetensors", tensors())
    squeeze.pack(source, tmp_path / "b.safetensors", level=level)
    squeeze.unpack(tmp_path / "b.safetensors", tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == source.read_bytes()


def test_loads_one_tensor_or_all(packed):
    expected = tensors()
    loaded = squeeze.load(packed)
    assert all(torch.equal(loaded[name], one) for name, one in expected.items())
    with squeeze.safe_open(packed, framework="pt") as file:
        assert sorted(file.keys()) == sorted(expected)
        assert torch.equal(file.get_tensor("layers.123.norm"), expected["layers.123.norm"])
        assert torch.equal(file.get_slice("layers.124.norm")[3:6], expected["layers.124.norm"][3:6])
        file.get_tensor("layers.123.norm").zero_()  # which is no memory of the file's
        assert torch.equal(file.get_tensor("layers.123.norm"), expected["layers.123.norm"])


def test_a_bundle_is_read_once_and_not_by_tensor(packed, tmp_path, monkeypatch):
    whole, read = packed.stat().st_size, []
    fill = InFile.fill
    monkeypatch.setattr(InFile, "fill", lambda self, begin, out: read.append(out.size) or fill(self, begin, out))
    with squeeze.safe_open(packed, framework="pt") as file:
        assert len(file.get_tensors()) == len(tensors())
    assert 0 < sum(read) <= whole
    read.clear()
    base = Base.open(packed)
    for tensor in tensorfile.read(tmp_path / "a.safetensors").tensors:
        assert base.tensor(tensor.name, tensor) is not None
    assert sum(read) <= whole


def test_few_decoded_bytes_are_kept(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "_KEPT", 1 << 16)
    squeeze.unpack(packed, tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()
    assert Bundle._size == sum(one.forms[place].size + bundles._EACH for one, place in Bundle._kept) <= 1 << 16


def test_workers_get_headers_and_bases(packed):
    described = pickle.loads(pickle.dumps(container.read(packed)))
    assert described.description.counts == container.read(packed).description.counts
    base, like = pickle.loads(pickle.dumps(Base.open(packed))), described.original.by_name["layers.123.norm"]
    assert base.tensor(like.name, like).tobytes() == tensors()[like.name].view(torch.uint8).numpy().tobytes()


def test_inspect_shares_the_bytes_of_a_payload(packed):
    sizes = packed_sizes(packed)
    assert sum(one["coded"] for one in sizes) == sum(one.size for one in tensorfile.read(packed).tensors)
    assert [one["name"] for one in sizes if one["raw"] == 0] == ["empty"]


def test_differences_from_a_base(tmp_path):
    base = saved(tmp_path / "a.safetensors", tensors())
    changed = tensors() | {"layers.007.norm": torch.ones(57).bfloat16(), "new": torch.ones(9).bfloat16()}
    tuned = saved(tmp_path / "b.safetensors", changed)
    squeeze.pack(tuned, tmp_path / "c.safetensors", base=base)
    assert (tmp_path / "c.safetensors").stat().st_size < 0.25 * base.stat().st_size
    squeeze.unpack(tmp_path / "c.safetensors", tmp_path / "d.safetensors", base=base)
    assert (tmp_path / "d.safetensors").read_bytes() == tuned.read_bytes()
    loaded = squeeze.load(tmp_path / "c.safetensors", base=base)
    assert all(torch.equal(loaded[name], one) for name, one in changed.items())


def test_chains(tmp_path):
    for step in range(3):
        found = {name: one + step * (name[-6:-5] == "5") for name, one in tensors().items()}
        (tmp_path / f"{step}").mkdir()
        source = saved(tmp_path / f"{step}" / "model.safetensors", found)
        base = {"base": tmp_path / f"packed-{step - 1}"} if step else {}
        squeeze.pack(source.parent, tmp_path / f"packed-{step}", **base)
    squeeze.unpack(tmp_path / "packed-2", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == source.read_bytes()


def test_a_folder_with_its_tensors_twice(tmp_path):
    (tmp_path / "a").mkdir()
    for name in "xy":
        saved(tmp_path / "a" / f"{name}.safetensors", {f"{name}.{key}": one for key, one in tensors().items()})
    squeeze.pack(tmp_path / "a", tmp_path / "b")
    squeeze.unpack(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c" / "y.safetensors").read_bytes() == (tmp_path / "a" / "y.safetensors").read_bytes()


def test_a_folder_with_an_index(tmp_path):
    (tmp_path / "a").mkdir()
    files = {f"{name}.safetensors": {f"{name}.{key}": one for key, one in tensors().items()} for name in "xy"}
    for name, found in files.items():
        saved(tmp_path / "a" / name, found)
    index = {"metadata": {}, "weight_map": {key: name for name, found in files.items() for key in found}}
    (tmp_path / "a" / "model.safetensors.index.json").write_text(json.dumps(index))
    squeeze.pack(tmp_path / "a", tmp_path / "b")
    assert squeeze.load(tmp_path / "b").keys() == index["weight_map"].keys()
    squeeze.pack(tmp_path / "a", tmp_path / "c", base=tmp_path / "b")
    squeeze.unpack(tmp_path / "c", tmp_path / "d", base=tmp_path / "b")
    assert (tmp_path / "d" / "y.safetensors").read_bytes() == (tmp_path / "a" / "y.safetensors").read_bytes()


def test_files_of_torch(tmp_path):
    torch.save(
        {"state": {k: {"step": torch.tensor(1.0), "mean": torch.randn(300)} for k in range(200)}}, tmp_path / "a.pt"
    )
    squeeze.pack(tmp_path / "a.pt", tmp_path / "b")
    assert any(record.coding.is_member for record in container.read(tmp_path / "b").description.records)
    squeeze.unpack(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a.pt").read_bytes()


def test_parts_join_to_the_same_file(packed, tmp_path):
    source, paths, first = source_of(tmp_path / "a.safetensors", True), [], 0
    settings = parts.Packing("runtime")
    counts = bundling.planned(source.file)
    for count in (sum(counts[:2]), sum(counts[2:])):
        paths.append(tmp_path / f"part {first}")
        with paths[-1].open("wb") as sink:
            parts.pack_part(source, parts.Span(first, count), settings, sink)
        first += count
    with (tmp_path / "joined").open("wb") as sink, source.file.path.open("rb") as reading:
        parts.join_packed(source, paths, settings, parts.sha256_of(reading), sink)
    assert (tmp_path / "joined").read_bytes() == packed.read_bytes()


def test_a_stopped_run_continues(packed, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    calls = []

    def stop(raw, coded):
        calls.append(raw)
        if len(calls) == 30:
            raise Stop

    with pytest.raises(Stop):
        squeeze.pack(tmp_path / "a.safetensors", tmp_path / "c.safetensors", on_tensor=stop)
    encode = bundling.encode
    monkeypatch.setattr(bundling, "encode", lambda *given: calls.append("bundle") or encode(*given))
    squeeze.pack(tmp_path / "a.safetensors", tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == packed.read_bytes()
    assert calls.count("bundle") == 1  # of two


def test_few_or_large_tensors_have_payloads_of_their_own(tmp_path):
    for name, found in (("few", tensors(count=20)), ("large", {f"w{k}": torch.randn(128, 128) for k in range(80)})):
        source = saved(tmp_path / f"{name}.safetensors", found)
        assert set(bundling.planned(tensorfile.read(source))) == {1}


def test_a_damaged_byte_of_a_payload_names_its_tensor(packed):
    data = bytearray(packed.read_bytes())
    place = max(tensorfile.read(packed).tensors, key=lambda one: one.size)
    data[place.end - 200] ^= 4
    packed.write_bytes(data)
    with pytest.raises(DamagedError, match=r"tensor 'layers\.\d+\.norm'"):
        squeeze.verify(packed)


def entry_of(described):
    return next(one for one in described["tensors"] if isinstance(one, dict) and "classes" in one)


CHANGES = {
    "coding that needs others": lambda one: one["codings"].__setitem__(0, "ulps"),
    "coding unknown": lambda one: one["codings"].__setitem__(0, "best"),
    "coding no text": lambda one: one["codings"].__setitem__(0, []),
    "sizes too few": lambda one: one["sizes"].pop(),
    "size negative": lambda one: one["sizes"].__setitem__(0, -8),
    "size huge": lambda one: one["sizes"].__setitem__(0, 1 << 61),
    "size a truth": lambda one: one["sizes"].__setitem__(0, True),
    "size another": lambda one: one["sizes"].__setitem__(0, one["sizes"][0] + 8),
    "classes too few": lambda one: one.update(classes=one["classes"][1:]),
    "class unknown": lambda one: one.update(classes="7" + one["classes"][1:]),
    "class no digit": lambda one: one.update(classes="x" + one["classes"][1:]),
    "classes another": lambda one: one.update(classes=one["classes"][::-1]),
    "checksums too few": lambda one: one.update(checksums=one["checksums"][16:]),
    "checksums cut": lambda one: one.update(checksums=one["checksums"][1:]),
    "checksums none": lambda one: one.update(checksums=""),
    "key unknown": lambda one: one.update(more=1),
    "dtype": lambda one: one.update(dtype="F32", shapes=[]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_refuses_an_entry_that_no_writer_makes(name, packed):
    file = tensorfiles.parsed(packed.read_bytes())
    described = json.loads(zlib.decompress(base64.b64decode(file.header["__metadata__"]["squeeze"])))
    CHANGES[name](entry_of(described))
    packed.write_bytes(file.described("squeeze", described).to_bytes())
    with pytest.raises(FormatError) as caught:
        squeeze.verify(packed)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_refuses_bundles_that_are_large():
    layout = Layout((CODINGS["rans"],), (8,), (0, 0))
    assert len(layout.members("U8", [MOST_BYTES - 1, 1])) == 2
    with pytest.raises(ValueError):
        layout.members("U8", [MOST_BYTES, 1])


def test_refuses_names_of_a_file_that_has_its_own(packed):
    file = tensorfiles.parsed(packed.read_bytes())
    described = json.loads(zlib.decompress(base64.b64decode(file.header["__metadata__"]["squeeze"])))
    packed.write_bytes(file.described("squeeze", described | {"names": sorted(tensors())}).to_bytes())
    with pytest.raises(DamagedError, match="cannot be read"):
        squeeze.verify(packed)


def test_every_bit_of_a_header_is_under_a_checksum(packed, tmp_path):
    data = packed.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    expected, path = tensors(), tmp_path / "d.safetensors"
    places = [*range(400), *range(400, start, 97)]
    for number, place in enumerate(places):
        changed = bytearray(data)
        changed[place] ^= 1 << number % 8
        path.write_bytes(changed)
        try:
            loaded = squeeze.load(path)
        except FormatError:
            continue
        assert all(torch.equal(loaded[name], one) for name, one in expected.items())  # such as another space


HEADERS = [
    b'{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"U8","shape":[],"data_offsets":[24,25]}}',
    b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
    b'{"x":{"dtype":"NEW","shape":[2],"data_offsets":[0,5]},"y":{"dtype":"F4","shape":[4],"data_offsets":[5,7]}}',
    b'{"__metadata__":{"k":"\\"dtype\\":\\"F32\\",\\"shape\\":[1],\\"data_offsets\\":[]"}}',
]


@pytest.mark.parametrize("header", HEADERS)
def test_short_headers(header):
    assert lengthened(shortened(header)) == header


def test_damaged_short_headers_do_not_become_much_longer():
    shape = b",".join([b"9" * 19] * 64)
    text = b'"dtype":"F32","shape":[%s],"data_offsets":[]' % shape + b'"dtype":"U8","shape":[],"data_offsets":[]' * 99
    assert len(lengthened(text)) < 2 * len(text)
    near = (
        b'"dtype":"U8","shape":[%d],"data_offsets":[]' % ((1 << 63) - 2) + b'"dtype":"U8","shape":[],"data_offsets":[]'
    )
    assert lengthened(near).endswith(b"[%d,%d]" % ((1 << 63) - 2, (1 << 63) - 1))


def test_short_headers_leave_out_what_follows_from_shapes():
    assert shortened(HEADERS[0]).count(b'"data_offsets":[]') == 2
    assert shortened(HEADERS[1]).count(b"[]") == 0
