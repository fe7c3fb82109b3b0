"""Memory, speed and logits of a model loaded from its packed folder, beside the original.

Each is loaded by transformers in a process of its own, after a tiny model has been packed, loaded and run there, so
that libraries are in memory. Memory is resident memory above that of the process then: after loading, and the highest
while tokens are generated, sampled every millisecond (on a GPU: torch's own counts). Logits must be equal.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers

import squeeze
import squeeze.integrations.transformers as integration
from bench.entry import Row
from squeeze.packing import container

_PROMPT = 64  # tokens


def rows(options: argparse.Namespace) -> Iterator[Row]:
    packed = {_name(path): (path, 0) for path in options.packed}
    yield from compared({"original": (options.model, 0), **packed}, options)


def _name(packed: Path) -> str:
    level = container.read(next(packed.glob("*.safetensors"))).description.level
    return "packed" if level == "runtime" else f"packed, {level}"


def compared(folders: dict[str, tuple[Path, int]], options: argparse.Namespace) -> Iterator[Row]:
    """A row for each of the folders of one model, with bytes that are resident, beside the first."""
    rows, outputs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, (path, resident) in folders.items():
            saved = Path(folder, name)
            given = [str(path), str(saved), str(options.tokens), options.device, str(resident), str(options.threads)]
            command = [sys.executable, "-m", "bench.measures.runtime", *given]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows.append({"folder": name, "tokens": options.tokens, **json.loads(done.stdout.splitlines()[-1])})
            outputs.append(torch.load(saved, weights_only=True))
    if not all(torch.equal(one, first) for found in outputs for one, first in zip(found, outputs[0], strict=True)):
        raise SystemExit("Error: the logits differ")
    for row in rows:
        for key in ("weights", "loaded", "peak"):
            row[f"{key}, share"] = round(row[key] / rows[0]["weights"], 4)
        row["processor, share"] = round(row["processor_per_token"] / rows[0]["processor_per_token"], 3)
        row["speed"] = round(row["tokens_per_second"] / rows[0]["tokens_per_second"], 3)
    yield from rows


def run(path: Path, saved: Path, tokens: int, device: str, resident: int, threads: int) -> dict:
    torch.set_num_threads(threads or torch.get_num_threads())
    warm_up(device)
    watch = Watch(device)
    config = transformers.AutoConfig.from_pretrained(path)
    if resident:
        config.quantization_config["resident"] = resident
    model = transformers.AutoModelForCausalLM.from_pretrained(path, config=config, device_map=device).eval()
    loaded = watch.now() - watch.start
    ids = torch.arange(1, 1 + _PROMPT, device=device)[None]
    with watch, torch.no_grad():
        start, used = time.perf_counter(), time.process_time()
        text = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        seconds, used = time.perf_counter() - start, time.process_time() - used
    with torch.no_grad():
        logits = model(ids).logits
    torch.save([logits.cpu(), text.cpu()], saved)
    if hasattr(model, "squeeze_buffers"):
        held = integration.memory_of(model)
        weights = held["tensors"] + held["buffers"]
    else:
        weights = sum(tensor.nbytes for tensor in {id(t): t for t in [*model.parameters(), *model.buffers()]}.values())
    peak = watch.peak - watch.start
    speed = {"tokens_per_second": tokens / seconds, "processor_per_token": used / tokens}
    return {"weights": weights, "loaded": loaded, "peak": peak, **speed}


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
    folder, target, count, place, resident, threads = sys.argv[1:]
    print(json.dumps(run(Path(folder), Path(target), int(count), place, int(resident), int(threads))))
