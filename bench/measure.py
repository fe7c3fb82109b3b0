"""The description of a benchmark, and the list of all benchmarks.

A benchmark is one file, bench/measures/NAME.py. Its `MEASURE` has a function that yields rows, the options, the fields
that identify a row, and the tables and plots of the docs.
"""

import argparse
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench.plots import Plot
from bench.tables import Listing, Row
from squeeze.options import MOST_MINUTES

__all__ = ["MEASURES", "Measure", "Row", "in_turns", "load", "minutes", "option"]

T = TypeVar("T")
MEASURES = {
    "sizes": "bytes of files at each level and with other compressors",
    "speed": "bytes and speed of all levels and rivals on one file, in one run",
    "start": "first and later uses of the wheels in an empty environment, and their installed sizes",
    "never-larger": "files that are larger than at the next lower level, with xz -9e or with --no-parse",
    "real": "documents, archives and images with wrappers opened and closed, and with other compressors",
    "deflate": "bytes that close deflate streams of zlib, 7-Zip and other encoders",
    "programs": "programs at level 3 with all transforms, and with each of them left out",
    "kinds": "files of each kind, compared with other compressors and with one that is made for the kind",
    "public": "widely used compressors as whole processes, on a text, JSON and a program",
    "lm-speed": "tokens per second of level 8, compared with llama.cpp on the same weights",
    "store": "fine-tunes of one base in a store, compared with packing them one by one, and with lmz",
    "packed": "a packed model on the CPU: processor time of a token, compared with bf16",
    "lossless": "packed checkpoints compared with lmz, zipnn, zstd and the zero-order bound: bytes and speed",
    "stream": "weights of a training run sent as differences: bytes and time of a step, compared with bf16",
    "quantize": "perplexity, KL and bytes of each quantization method",
    "embeddings": "an embedding model quantised by several calibrations: cosine and nearest neighbours",
    "gguf": "GGUF files of each type, compared with llama.cpp's quantizer with an importance matrix",
    "recover": "gap and KL of quantised models before and after training, in the same format",
    "lora": "a fine-tune as a LoRA adapter, compared with its 2-bit difference at equal bytes",
    "prune": "gap, KL and packed bytes of each pruning method, compared with GPTQ",
    "experts-pruned": "gap of a small mixture whose experts are halved, by method",
    "factorize": "gap and bytes of each method of factorising, compared with GPTQ",
    "kv": "perplexity, KL, bits, bytes and time of each KV cache policy",
    "zoo": "every operation with a tiny model of each decoder architecture of transformers",
    "gpu": "every kernel on a GPU, compared with torch",
}


@dataclass(frozen=True)
class Measure:
    """A benchmark.

    Args:
        rows: function that measures and yields one row at a time
        key: fields that identify a row; if empty, no results are kept
        together: field whose values share a line of the record if their rows are otherwise equal; empty for none
        keeps: function that says whether a row is kept
        options: pairs of an argument's name and argparse's keywords
        needs: required inputs and packages, such as "a corpus"
        rivals: programs and packages whose versions are recorded
        time: approximate minutes on two cores, 0 if it depends on the input
        tables: tables of the docs, by name
        plots: plots of the docs, by name
    """

    rows: Callable[[argparse.Namespace], Iterator[Row]]
    key: tuple[str, ...] = ()
    together: str = ""
    keeps: Callable[[Row], bool] = lambda row: True
    options: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    needs: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    time: float = 0
    tables: Mapping[str, Listing] = field(default_factory=dict)
    plots: Mapping[str, Plot] = field(default_factory=dict)

    def parser(self, name: str) -> argparse.ArgumentParser:
        about = [f"Measure {MEASURES[name]}.", ""]
        about += [f"Needs {', '.join(self.needs)}."] if self.needs else []
        about += [f"Compares with {', '.join(self.rivals)}, if installed."] if self.rivals else []
        about += [f"Takes about {self.time:g} minutes on two cores."] if self.time else []
        shape = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(f"python -m bench {name}", description="\n".join(about), formatter_class=shape)
        for option_name, settings in self.options:
            parser.add_argument(option_name, **settings)
        return parser


def option(name: str, **settings: Any) -> tuple[str, Mapping[str, Any]]:
    return name, settings


def minutes(text: str) -> float:
    """Parse a duration in minutes, above 0 and at most what commands allow."""
    value = float(text)
    if not 0 < value <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and up to {MOST_MINUTES:,}, got {text}")
    return value


def in_turns(tasks: Mapping[str, Callable[[], T]], runs: int) -> dict[str, list[T]]:
    """Run tasks in turns, after one turn that warms up. Return the results of each."""
    turns = [{name: task() for name, task in tasks.items()} for _ in range(runs + 1)]
    return {name: [turn[name] for turn in turns[1:]] for name in tasks}


def load(name: str) -> Measure:
    """Import a benchmark, with torch and everything else that it needs."""
    measure: Measure = importlib.import_module(f"bench.measures.{name.replace('-', '_')}").MEASURE
    return measure
