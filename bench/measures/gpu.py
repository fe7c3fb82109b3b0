"""Measure GPU kernels, a packed model and level 8, compared with torch in the same run.

Results are checked before anything is timed. Each case runs in a process of its own, so that a kernel that hangs or
breaks the device ends only its case. A stopped run continues: cases that were measured on this device at this commit
are skipped.
"""

import argparse
import gc
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import squeeze
from bench import records
from bench.measure import Measure, Row, minutes, option
from bench.tables import Column, Listing

MODEL, FILES = "a packed model of 7 billion weights, a token", "level 8, a byte of text"
_ROUNDS = 20
_TOKENS, _BYTES, _ON_CPU = 64, 10_000_000, 100_000


class Gpu:
    """The current CUDA device. `apart` is the total bytes of a weight's copies, so that none remains in a cache."""

    where, dtype, apart, large = "cuda", torch.bfloat16, 1 << 29, True

    def microseconds(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Return the mean microseconds of a call. All run in sequence, in a CUDA graph if they can be captured."""
        try:
            return graph_time(calls)
        except RuntimeError:
            torch.cuda.synchronize()
            return event_time(lambda: [call() for call in calls]) / len(calls)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if not torch.cuda.is_available():
        sys.exit("Error: no GPU is available")
    done = {} if options.again else {row["case"] for row in records.current("gpu", options.results)}
    for name in names():
        if not any(part in name for part in options.only.split("|")):
            continue
        if name in done:
            print(f"Note: {name}: measured before", file=sys.stderr)
        elif options.together:
            yield from measure(name)
        else:
            yield from in_a_process(name, 60 * options.minutes, measure)


def cases() -> tuple[Any, ...]:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # for kernels that do not say; unset, Triton warns
    from bench.shared.gpu_cases import CASES

    return CASES


def names() -> list[str]:
    return [*(case.name for case in cases()), MODEL, FILES]


def measure(name: str) -> Iterator[Row]:
    torch.manual_seed(1)
    with torch.no_grad():
        if name == MODEL:
            yield from packed_model()
        elif name == FILES:
            yield from level_8()
        else:
            yield from measure_case(next(case for case in cases() if case.name == name), Gpu())


def in_a_process(name: str, seconds: float, work: Callable[[str], Iterator[Row]]) -> Iterator[Row]:
    """Yield the rows of a case from a process of its own.

    Args:
        name: name of the case
        seconds: time limit of each row
        work: function that measures the case
    """
    receiving, sending = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_send, args=(sending, work, name), daemon=True)
    process.start()
    sending.close()
    reason = f"took more than {seconds:g} s"
    try:
        while receiving.poll(seconds):
            if (row := receiving.recv()) is None:
                return
            yield row
    except EOFError:
        process.join()
        reason = f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    print(f"Note: {name}: failed: {reason}", file=sys.stderr)


def _send(sending: Connection, work: Callable[[str], Iterator[Row]], name: str) -> None:
    """Send the rows, and None after the last."""
    for row in work(name):
        sending.send(row)
    sending.send(None)


def measure_case(case: Any, device: Any) -> Iterator[Row]:
    """Yield a row for each implementation of a case. Failures are reported on standard error."""
    data = case.data(device)
    expected, first = case.expected(data), 0.0
    for way in case.ways:
        try:
            calls = way.calls(data)
            check(calls[0](), expected, way.tolerance)
            found = device.microseconds(calls)
        except Exception as error:  # a kernel may raise anything
            print(f"Note: {case.name}, {way.name}: failed: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            continue
        row = {"case": case.name, "way": way.name, "us": found}
        row |= {"GB/s": case.nbytes(data) / found / 1e3} if case.nbytes else {}
        yield row | ({"x": first / found} if first else {})
        first = first or (found if way is case.ways[0] else 0.0)


def check(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Raise ValueError if a result is too far from the expected one.

    Args:
        found: result
        expected: expected result
        tolerance: relative error allowed; 0 for equal bits
    """
    if found.shape != expected.shape:
        raise ValueError(f"expected a result of shape {tuple(expected.shape)}, got {tuple(found.shape)}")
    if not tolerance:
        if not torch.equal(found.view(torch.uint8), expected.view(torch.uint8)):
            raise ValueError("the result is wrong")
        return
    error = ((found.float() - expected.float()).norm() / expected.float().norm()).item()
    if not error <= tolerance:
        raise ValueError(f"the result is wrong: its relative error is {error:.2e}")


def graph_time(calls: Sequence[Callable[[], Any]]) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return event_time(graph.replay) / len(calls)


def event_time(call: Callable[[], Any]) -> float:
    """Return the median microseconds of a call, after one warm-up call."""
    call()
    times = []
    for _ in range(_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return statistics.median(times)


def packed_model(device: str = "cuda", **sizes: int) -> Iterator[Row]:
    """Compare a packed model of random weights, in the shapes of Llama-2-7B, with bf16. Logits must be equal."""
    import transformers

    import squeeze.integrations.transformers  # loads packed folders

    with tempfile.TemporaryDirectory() as temporary:
        dense, packed = Path(temporary, "model"), Path(temporary, "packed")
        with torch.device(device):
            config = transformers.LlamaConfig(tie_word_embeddings=False, **sizes)
            model = transformers.LlamaForCausalLM(config).bfloat16()
        model.save_pretrained(dense)
        del model
        squeeze.pack(dense, packed)
        (us, memory, outputs), (ours, less, same) = (_generated(folder, device) for folder in (dense, packed))
    if not all(map(torch.equal, outputs, same)):
        raise SystemExit("Error: the logits differ")
    yield {"case": MODEL, "way": "bf16", "us": us}
    yield {"case": MODEL, "way": "packed", "us": ours, "x": us / ours, "memory": less / memory}


def _generated(folder: Path, device: str) -> tuple[float, int, list[torch.Tensor]]:
    """Return microseconds per token, the model's bytes on the GPU (1 on the CPU), and its results."""
    import transformers

    gc.collect()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype="auto", device_map=device).eval()
    memory = torch.cuda.memory_allocated() - before if device == "cuda" else 1
    ids = torch.arange(1, 65, device=device)[None]
    model.generate(ids, max_new_tokens=4, pad_token_id=0)  # compiles
    start, exactly = time.perf_counter(), {"max_new_tokens": _TOKENS, "min_new_tokens": _TOKENS, "do_sample": False}
    text = model.generate(ids, pad_token_id=0, **exactly).cpu()
    return 1e6 * (time.perf_counter() - start) / _TOKENS, memory, [text, model(ids).logits.cpu()]


def _library(count: int) -> bytes:
    """Return the first bytes of Python's library, file by file."""
    data = bytearray()
    for path in sorted(Path(os.__file__).parent.rglob("*.py")):
        data += path.read_bytes()
        if len(data) >= count:
            break
    return bytes(data[:count])


def level_8(device: str = "cuda", count: int = _BYTES, **settings: Any) -> Iterator[Row]:
    """Compress and decompress a text on the GPU, and a part of it on the CPU."""
    data = _library(count)
    lanes = {"lanes": 1024} | settings
    models = {"model": lanes["model"]} if "model" in lanes else {}

    def timed(work: Callable[[], bytes]) -> tuple[bytes, float]:
        start = time.perf_counter()
        return work(), 1e6 * (time.perf_counter() - start)

    squeeze.compress(data[:20_000], 8, verify=False, device=device, **lanes)  # compiles
    coded, there = timed(lambda: squeeze.compress(data, 8, verify=False, device=device, **lanes))
    restored, back = timed(lambda: squeeze.decompress(coded, device=device, **models))
    part = squeeze.compress(data[:_ON_CPU], 8, verify=False, device=device, **lanes)
    if restored != data or squeeze.decompress(part, device="cpu", **models) != data[:_ON_CPU]:
        raise SystemExit("Error: what was decoded differs")
    yield {"case": FILES, "way": "compress", "us": there / len(data)}
    yield {"case": FILES, "way": "decompress", "us": back / len(data)}


MEASURE = Measure(
    rows,
    key=("case", "way"),
    needs=("a GPU", "triton"),
    time=20,
    options=(
        option("--only", default="", help="texts in the names of the cases to measure, separated by |"),
        option("--together", action="store_true", help="run in one process: faster, but a crash ends all cases"),
        option("--again", action="store_true", help="measure again what has a result of this device and commit"),
        option("--minutes", type=minutes, default=10, help="time limit of a row in minutes, default: 10"),
    ),
    tables={
        "gpu": Listing(
            (
                Column("case", "case"),
                Column("way", "way"),
                Column("us", "us", ",.1f"),
                Column("GB/s", "GB/s", ",.0f"),
                Column("x the first", "x", ".2f"),
                Column("memory, of the first's", "memory", ".2f"),
            )
        )
    },
)
