"""Files of torch.save: archives and pickles, of which nothing is run, and which come back as they were."""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

import squeeze
from squeeze.checkpoint import torch_file
from tests.fuzz import mutations
from tests.fuzz.judging import LIMITS, SAME, TRUE, Wrong, one_of
from tests.fuzz.limited import limited

_OPCODES = (  # of pickles, whose strings and numbers follow
    *(
        b"cos\nsystem\n",
        b"(S'true'\ntR.",
        b"\x80\x04",
        b"\x8c\x02os",
        b"\x93",
        b"X\xff\xff\xff\x7f",
        b"T\xff\xff\xff\x7f",
    ),
    *(b"\x8e" + b"\xff" * 8, b"r\xff\xff\xff\x7f", b"(" * 3_000, b"]" * 3_000, b"]a" * 3_000, b"Q", b"0", b"e", b"u"),
    *(b"\x8a\xff" + b"\x7f" * 255, b"L" + b"9" * 5_000 + b"L\n", b"I99999999999999999999\n", b"G\x7f\xf0" + bytes(6)),
)


@dataclass(frozen=True)
class Case:
    data: bytes
    sample: int


class TorchFile:
    """Both kinds of files, of tensors in several types, one in views of a shared storage."""

    seconds = 0.02

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        base = torch.arange(600, dtype=torch.float32)
        state = {"a": base.to(torch.bfloat16), "b": base.view(20, 30), "step": 7, "more": [base[:300], base.half()]}
        self.samples = []
        for new in (True, False):
            sink = io.BytesIO()
            torch.save(state, sink, _use_new_zipfile_serialization=new)
            self.samples.append(sink.getvalue())
        for number, data in enumerate(self.samples):
            (box := folder / str(number)).mkdir()
            self.read(Case(data, number), box)

    def mutate(self, random: Random) -> Case:
        number = random.randrange(len(self.samples))
        sample = self.samples[number]
        changed = one_of(
            random,
            (3, lambda r: mutations.damaged(sample, r)),
            (1, lambda r: mutations.spliced(sample, r.choice(self.samples), r)),
            (5, lambda r: _rebuilt(sample, r) if sample.startswith(b"PK") else _opcodes(sample, r)),
        )
        return Case(changed, number)

    def read(self, case: Case, folder: Path) -> str:
        path, packed, back = (folder / f"{name}.pt" for name in ("a", "packed", "back"))
        path.write_bytes(case.data)
        found = torch_file.read(path, LIMITS)
        if sum(tensor.size for tensor in found.file.tensors) + len(found.file.header) != len(case.data):
            raise Wrong("read: storages and the rest are not the whole file")
        squeeze.pack(path, packed, verify=False)
        limited(squeeze.unpack, packed, back)
        if back.read_bytes() != case.data:
            raise Wrong("pack and unpack give other bytes")
        return SAME if case.data == self.samples[case.sample] else TRUE


def _rebuilt(data: bytes, random: Random) -> bytes:
    """The same archive with another entry, whose sizes and checksums are right."""
    sink = io.BytesIO()
    kind = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(sink, "w", kind) as made:
        names = archive.namelist()
        pickled = next(name for name in names if name.endswith("data.pkl"))
        chosen = pickled if random.random() < 0.7 else random.choice(names)
        for name in names:
            content = archive.read(name)
            if name == chosen:
                content = _opcodes(content, random) if random.random() < 0.5 else mutations.damaged(content, random)
            other = str(random.choice(mutations.TEXTS)).encode("utf-8", "replace").decode()[:30_000] or "x"
            made.writestr(zipfile.ZipInfo(other if random.random() < 0.03 else name), content, kind)
    return sink.getvalue()


def _opcodes(data: bytes, random: Random) -> bytes:
    """Opcodes where there were none."""
    at = random.randrange(min(len(data), 2_000))
    return data[:at] + random.choice(_OPCODES) + data[at + random.choice((0, 0, 1, 5)) :]


FORMAT = TorchFile
