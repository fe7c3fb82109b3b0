"""Memory, speed and logits of a model loaded from its packed folder, beside the original.

Each is loaded by transformers in a process of its own, after a tiny model has been packed, loaded and run there, so
that libraries are in memory. Memory is resident memory above that of the process then: after loading, and the highest
while tokens are generated, sampled every millisecond (on a GPU: torch's own counts). All take turns, and a share is the
median of those of each turn. Logits must be equal, but those of fused products: how far the logits of single tokens are
from the same model's in float32 is told of all.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
import transformers

import squeeze
import squeeze.integrations.transformers as integration
from bench.entry import Row
from squeeze.kv.contract import CACHE
from squeeze.packing import container
from squeeze.packing.description import Description

_PROMPT = 64  # tokens
_STEPS = 8  # of them that go through the model one by one


@dataclass(frozen=True)
class Case:
    """A folder, and how it is loaded. resident: bytes."""

    path: str
    resident: int = 0
    product: str = "exact"
    dtype: str = "auto"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    cases = {"original": Case(str(options.model))}
    for path in options.packed:
        name = _name(path)
        cases |= {name: Case(str(path)), f"{name}, fused": Case(str(path), product="fused")}
        size = int(options.resident * _described(path).size)
        if size:
            part = f"{options.resident:.0%} resident"
            cases |= {
                f"{name}, {part}": Case(str(path), size),
                f"{name}, fused, {part}": Case(str(path), size, "fused"),
            }
    yield from compared(cases, options)


def _name(packed: Path) -> str:
    level = _described(packed).level
    return "packed" if level == "runtime" else f"packed, {level}"


def _described(packed: Path) -> Description:
    file = next(packed.glob("*.safetensors"), None)
    if file is None:
        raise SystemExit(f"Error: {packed}: no packed file is in this folder; `squeeze pack` makes them")
    return container.read(file).description


def compared(cases: dict[str, Case], options: argparse.Namespace) -> Iterator[Row]:
    """A row for each case of one model, beside the first."""
    found: dict[str, list[Row]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name, case in cases.items():
                found[name].append(_measured(case, Path(folder, name), options))
        _measured(Case(next(iter(cases.values())).path, dtype="float32"), Path(folder, "exact"), options)
        outputs = {name: torch.load(Path(folder, name), weights_only=True) for name in [*cases, "exact"]}
    first = next(iter(cases))
    for name, case in cases.items():
        if case.product == "exact" and not all(map(torch.equal, outputs[name], outputs[first])):
            raise SystemExit("Error: the logits differ")
        yield {"folder": name, "tokens": options.tokens, **_row(found[name], found[first])} | {
            "distance": _distance(outputs[name][1], outputs["exact"][1])
        }


def _measured(case: Case, saved: Path, options: argparse.Namespace) -> Row:
    given = [json.dumps(asdict(case)), str(saved), str(options.tokens), options.device, str(options.threads)]
    command = [sys.executable, "-m", "bench.measures.runtime", *given]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _row(mine: list[Row], firsts: list[Row]) -> Row:
    row = {key: median(one[key] for one in mine) for key in mine[0]}
    for key in ("weights", "loaded", "peak"):
        row[f"{key}, share"] = round(row[key] / firsts[0]["weights"], 4)
    for key, name in (("processor_per_token", "processor, share"), ("tokens_per_second", "speed")):
        row[name] = round(median(one[key] / first[key] for one, first in zip(mine, firsts, strict=True)), 3)
    return row


def _distance(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square, of that of the exact ones."""
    exact = exact.double()
    return float((logits.double() - exact).norm() / exact.norm())


def run(case: Case, saved: Path, tokens: int, device: str, threads: int) -> dict:
    torch.set_num_threads(threads or torch.get_num_threads())
    warm_up(device)
    watch = Watch(device)
    load = transformers.AutoModelForCausalLM.from_pretrained
    with integration.load_options(resident=case.resident, product=case.product):
        model = load(case.path, dtype=case.dtype, device_map=device).eval()
    loaded = watch.now() - watch.start
    ids = torch.arange(1, 1 + _PROMPT, device=device)[None]
    model.generate(ids, max_new_tokens=2, pad_token_id=0)  # compiled code comes from the disk
    with watch, torch.no_grad():
        start, used = time.perf_counter(), time.process_time()
        text = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        seconds, used = time.perf_counter() - start, time.process_time() - used
    with torch.no_grad():
        logits, steps = model(ids).logits, _stepped(model, ids)
    torch.save([logits.cpu(), steps.cpu(), text.cpu()], saved)
    if hasattr(model, "squeeze_buffers"):
        held = integration.memory_of(model)
        weights = held["tensors"] + held["buffers"]
    else:
        weights = sum(tensor.nbytes for tensor in {id(t): t for t in [*model.parameters(), *model.buffers()]}.values())
    peak = watch.peak - watch.start
    speed = {"tokens_per_second": tokens / seconds, "processor_per_token": used / tokens}
    return {"weights": weights, "loaded": loaded, "peak": peak, **speed}


def _stepped(model: transformers.PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """The logits of the last tokens, which go through the model one by one."""
    cache, found = model(ids[:, :-_STEPS], use_cache=True)[CACHE], []
    for k in range(_STEPS, 0, -1):
        step = model(ids[:, -k : 1 - k or None], use_cache=True, **{CACHE: cache})
        cache = step[CACHE]
        found.append(step.logits)
    return torch.cat(found)


def warm_up(device: str) -> None:
    config = transformers.LlamaConfig(
        vocab_size=999, hidden_size=64, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2
    )
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, "model"), Path(name, "packed")]
        transformers.LlamaForCausalLM(config).bfloat16().save_pretrained(folders[0])
        squeeze.pack(*folders)
        for folder in folders:
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map=device)
            model.generate(torch.ones((1, 8), dtype=torch.int64, device=device), max_new_tokens=4, pad_token_id=0)


class Watch:
    """The most memory in use within a block."""

    def __init__(self, device: str):
        self.device = device
        self.start = self.now()
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def now(self) -> int:
        if self.device != "cpu":
            return torch.cuda.memory_allocated()
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))

    def _sample(self) -> None:
        while not self._stop.wait(0.001):
            self.peak = max(self.peak, self.now())

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.device != "cpu":
            self.peak = max(self.peak, torch.cuda.max_memory_allocated())


if __name__ == "__main__":  # the process that loads one of them
    described, target, count, place, threads = sys.argv[1:]
    print(json.dumps(run(Case(**json.loads(described)), Path(target), int(count), place, int(threads))))
