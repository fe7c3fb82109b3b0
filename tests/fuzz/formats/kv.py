"""A saved KV cache: what is loaded is to the bit what was saved, unless every checksum of the file was made anew."""

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import xxhash

from squeeze.checkpoint.safetensors import ELEMENT_BITS
from squeeze.errors import SqueezeError
from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache, Rotated, attention
from squeeze.kv.archive.calibrate import archive_policy
from squeeze.kv.blockfloat import BlockFloat
from squeeze.kv.contract import CACHE
from squeeze.kv.evict import AdaKV
from squeeze.kv.statistics import observe
from squeeze.packing.tensors import floats
from tests.fuzz import mutations, tensorfiles
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of
from tests.fuzz.limited import limited
from tests.makers.kv_models import llama, tokens

_POLICIES = (
    *(FullPrecision(), KIVI(4, group=16, window=16), KIVI(bits=((2, 8), 3), value_bits=4, group=16, window=16)),
    *(Rotated(2, window=16), BlockFloat(4, window=16), AdaKV(KIVI(4, group=16, window=16), select=16)),
)
KEY = "squeeze.kv"  # of the description
_CHECKSUM = b'"squeeze.kv.xxh3":"'  # before that of the whole file


@dataclass(frozen=True)
class Case:
    """forged: its checksums were made right."""

    data: bytes
    sample: int
    forged: bool


class KV:
    """Caches of a tiny network by several policies."""

    seconds = 0.02

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.model = name, llama()
        attention.install(self.model)
        self.samples: list[bytes] = []
        self.states: list[str] = []
        statistics = observe(self.model, tokens(length=300)[0], context=100, windows=1, window=16, joint=3)
        self.archive = archive_policy(self.model, statistics, 2)
        for number, policy in enumerate((*_POLICIES, self.archive)):
            cache = QuantizedKVCache(self.model.config, policy)
            with torch.no_grad():
                self.model(tokens(1, 70), **{CACHE: cache})
            cache.save(folder / f"{number}.kv")
            self.samples.append((folder / f"{number}.kv").read_bytes())
            self.states.append(_state(self._load(folder / f"{number}.kv", number)))
            self.read(Case(self.samples[-1], number, False), folder)

    def mutate(self, random: Random) -> Case:
        number = random.randrange(len(self.samples))
        data = self.samples[number]
        forged, changed = one_of(
            random,
            (3, lambda r: (False, mutations.damaged(data, r))),
            (1, lambda r: (False, mutations.spliced(data, r.choice(self.samples), r))),
            (2, lambda r: _forged(tensorfiles.mutated(tensorfiles.parsed(data), r), r)),
            (5, lambda r: _forged(_described(tensorfiles.parsed(data), r), r)),
        )
        return Case(changed, number, forged)

    def read(self, case: Case, folder: Path) -> str:
        path = folder / "a.kv"
        path.write_bytes(case.data)
        cache = self._load(path, case.sample)
        if _state(cache) in self.states:
            return SAME
        if not case.forged:
            raise Wrong("load: another cache than was saved")
        with torch.no_grad():
            self.model(torch.tensor([[5]]), **{CACHE: cache})
        return TRUE

    def _load(self, path: Path, sample: int) -> QuantizedKVCache:
        policy = self.archive if sample == len(_POLICIES) else None
        return limited(QuantizedKVCache.load, path, self.model.config, policy=policy)


def _forged(data: bytes, random: Random) -> tuple[bool, bytes]:
    """Mostly with a checksum that is right again."""
    at = data.find(_CHECKSUM) + len(_CHECKSUM)
    if at < len(_CHECKSUM) or random.random() < 0.2:
        return False, data
    blank = data[:at] + b"0" * 16 + data[at + 16 :]
    return True, blank[:at] + xxhash.xxh3_64_hexdigest(blank).encode() + blank[at + 16 :]


def _described(file: tensorfiles.TensorFile, random: Random) -> bytes:
    """Another description, or another payload with its checksum."""
    described = json.loads(file.header["__metadata__"][KEY])
    if random.random() < 0.4:
        name = random.choice(list(file.entries()))
        payload = mutations.damaged(file.payload(name), random)
        file = file.with_payload(name, payload)
        _right(described["records"][name], payload)
    else:
        described = mutations.mutated(described, random)
    return file.described(KEY, described).to_bytes()


def _right(record: dict[str, Any], payload: bytes) -> None:
    """Let the checksum of a tensor be that of what its payload decodes to, if it does."""
    data = np.frombuffer(payload, np.uint8).copy()
    try:
        if record["coding"] == "rans":
            size = prod(record["shape"]) * ELEMENT_BITS[record["dtype"]] // 8
            data = floats.decode(data, record["dtype"], size)
        record["xxh3"] = xxhash.xxh3_64_hexdigest(data.tobytes())
    except SqueezeError:
        pass


def _state(cache: Any) -> str:
    """A digest of all that a cache holds."""
    digest = xxhash.xxh3_128(repr(cache.policy).encode())
    for layer in cache.packed_layers:
        digest.update(repr((layer.get_seq_length(), layer.dropped, layer.evicted, layer.coded_tokens)).encode())
        fields = [
            tensor for store in (*layer.stores, *layer.selected.stores) for _, tensor in sorted(store.read().items())
        ]
        for tensor in (*layer.sinks, *layer.residual, *fields):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


FORMAT = KV
