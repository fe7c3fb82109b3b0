"""Compare architectures at equal multiplications per byte, trained on the same bytes: `python -m training.compare`.

Each reads the first bytes of the corpus once, with the schedule and rates of `training.train`, in float32. Models of
tokens have a vocabulary learned from the same bytes. A line of the log has bits per byte on held-out documents.
`--table` writes the log into README.md, as a table between its markers.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import torch

from squeeze.recipes.train.byte_network import BYTES, Flat, Shape, build, parameters
from training import corpus as corpora
from training.architectures import Mixing, gated, llama, min_gru, rg_lru
from training.corpus import Split
from training.evaluate import LENGTH, costs_of
from training.streams import Rows, text
from training.train import Plan, Training

LOG = Path(__file__).with_name("architectures.jsonl")
TOKENS = 4_096
README = Path(__file__).with_name("README.md")
_MARKED = re.compile(r"(?<=<!-- table: architectures -->\n).*?(?=<!-- end -->)", re.DOTALL)
_PIECE = 512  # bytes that a row reads at a time
_MOST = 8  # held-out documents a kind


@dataclass(frozen=True)
class Candidate:
    """An architecture: a function that builds it, and its multiplications per symbol."""

    name: str
    make: Callable[[], Any]
    of_tokens: bool = False

    def products(self, model: Any) -> float:
        return float(model.products() if isinstance(model, Mixing) else model.shape.products())


CANDIDATES = (
    Candidate("gated recurrence", lambda: build(Shape(112, 2, 224))),
    Candidate("minGRU", lambda: Mixing(BYTES, 112, 2, min_gru(264))),
    Candidate("RG-LRU", lambda: Mixing(BYTES, 112, 2, rg_lru(240))),
    Candidate("Llama, window of 256", lambda: Mixing(BYTES, 96, 2, llama(144, 256))),
    Candidate("gated recurrence, tokens", lambda: Mixing(TOKENS, 128, 2, gated(272)), of_tokens=True),
    Candidate("Llama, tokens, window of 128", lambda: Mixing(TOKENS, 128, 2, llama(192, 128)), of_tokens=True),
    Candidate("gated recurrence, and one over words", lambda: build(Shape(80, 2, 160, 192, 2, 320, word_bits=0))),
)


class Symbols:
    """Bytes as symbols."""

    bytes_each = 1.0

    def of(self, content: bytes) -> np.ndarray:
        return np.frombuffer(content, np.uint8)

    def split(self, split: Split, most: int) -> Split:
        """Return the first documents of a split, at least `most` bytes of them if it has that many."""
        count = min(int(np.searchsorted(np.cumsum(split.size), most)) + 1, len(split))
        start, size, kind, source = split.start[:count], split.size[:count], split.kind[:count], split.source[:count]
        return Split(split.content, start, size, kind, source)


class Tokens(Symbols):
    """Tokens by byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909), learned from the first documents. 0 is the
    start."""

    def __init__(self, learned: Split):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=TOKENS,
            special_tokens=["<start>"],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        documents = (learned.document(number).decode("utf-8", "ignore") for number in range(len(learned)))
        self.tokenizer.train_from_iterator(documents, trainer)

    def of(self, content: bytes) -> np.ndarray:
        return np.array(self.tokenizer.encode(content.decode("utf-8", "ignore")).ids, np.int32)

    def split(self, split: Split, most: int) -> Split:
        chosen = super().split(split, most)
        coded = [self.of(chosen.document(number)) for number in range(len(chosen))]
        size = np.array([one.size for one in coded], np.int64)
        self.bytes_each = float(chosen.size.sum() / size.sum())
        return Split(np.concatenate(coded), np.cumsum(size) - size, size, chosen.kind, chosen.source)


def compare(folder: Path, chosen: Sequence[Candidate], plan: Plan) -> Iterator[dict[str, Any]]:
    """Train each candidate, and yield the lines of the log.

    Args:
        folder: folder of the corpus
        chosen: candidates to train
        plan: schedule and sizes
    """
    train, held = corpora.read(folder, "train"), corpora.read(folder, "held_out")
    kinds = corpora.names(folder)["kinds"]
    tokens = Tokens(Symbols().split(train, plan.total)) if any(one.of_tokens for one in chosen) else Symbols()
    for candidate in chosen:
        symbols = tokens if candidate.of_tokens else Symbols()
        rows = symbols.split(train, 2 * plan.total)  # rows do not all come as far
        own = replace(plan, total=round(plan.total / symbols.bytes_each), time=round(plan.time / symbols.bytes_each))
        torch.manual_seed(0)
        model = candidate.make()
        begun = time.monotonic()
        training = Training(model, own, Rows.begin(rows, own.rows, own.time))
        while training.seen < own.total:
            training.step()
        yield {
            "name": candidate.name,
            "products": round(candidate.products(model) / symbols.bytes_each),
            "parameters": parameters(model),
            "bytes": round(training.seen * symbols.bytes_each),
            "bytes a symbol": round(symbols.bytes_each, 3),
            "rows": own.rows,
            "time": own.time,
            "seconds": round(time.monotonic() - begun),
            **held_out(model, held, kinds, symbols),
        }


@torch.no_grad()
def held_out(model: Any, split: Split, kinds: Sequence[str], symbols: Symbols) -> dict[str, Any]:
    """Return bits per byte of the first bytes of some documents of each kind, each from a fresh state.

    Args:
        model: trained model
        split: held-out part of the corpus
        kinds: names of the kinds
        symbols: bytes or tokens
    """
    bits: dict[str, float] = {}
    for number, kind in enumerate(kinds):
        found = [text(split, int(one))[:LENGTH].tobytes() for one in np.flatnonzero(split.kind == number)[:_MOST]]
        whole = [one.decode("utf-8", "ignore").encode() for one in found]
        if whole:
            costs, known = costs_of(cast(Flat, model), [symbols.of(one) for one in whole])
            bits[kind] = round(float(costs[known].sum()) / sum(map(len, whole)), 4)
    return {"bits": bits, "held_bits": round(sum(bits.values()) / len(bits), 4)}


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return the log as a table in Markdown, the best candidate first."""
    kinds = list(records[0]["bits"])
    head = ["architecture", "parameters", "multiplications a byte", "bits a byte", *kinds]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    for record in sorted(records, key=lambda record: record["held_bits"]):
        cells = [record["name"], f"{record['parameters'] / 1e6:.2f} M", f"{record['products']:,}"]
        cells += [f"{bits:.2f}" for bits in (record["held_bits"], *(record["bits"][kind] for kind in kinds))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def filled(text: str, log: Path = LOG) -> str:
    """Return a page with the table of a log between its markers, or with nothing if there is no log yet."""
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    made = f"\n{table([json.loads(line) for line in lines])}\n\n" if lines else "\n"
    return _MARKED.sub(lambda _: made, text)


@click.command()
@click.option("--corpus", type=click.Path(path_type=Path, exists=True), help="Folder that prepare wrote.")
@click.option("--megabytes", default=3.0, show_default=True, help="Megabytes of the corpus that each reads.")
@click.option("--rows", default=16, show_default=True, help="Rows of a batch.")
@click.option("--only", default="", help="Text in the names of the architectures to train.")
@click.option("--threads", default=1, show_default=True)
@click.option("--log", type=click.Path(path_type=Path), default=LOG, help="Log file, to which a line each is added.")
@click.option("--table", "shows", is_flag=True, help="Write the log into README.md without training.")
def main(corpus: Path | None, megabytes: float, rows: int, only: str, threads: int, log: Path, shows: bool) -> None:
    """Compare architectures on CORPUS."""
    if shows:
        README.write_text(filled(README.read_text("utf-8"), log), "utf-8")
        return
    if corpus is None:
        raise click.UsageError("name a corpus, or --table")
    torch.set_num_threads(threads)
    digest = json.loads((corpus / "corpus.json").read_text("utf-8"))["train"]["sha256"][:16]
    plan = Plan(rows=rows, time=_PIECE, total=round(megabytes * 1e6))
    for record in compare(corpus, [one for one in CANDIDATES if only in one.name], plan):
        line = json.dumps({**record, "corpus": digest})
        with log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        click.echo(line)


if __name__ == "__main__":
    main()
