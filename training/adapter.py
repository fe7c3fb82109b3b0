"""Train the adapter of the bundled model, and continue where the last run stopped: `python -m training.adapter`."""

import json
from dataclasses import asdict
from pathlib import Path

import click
import numpy as np
import torch

from squeeze.integrations.load_model import load_model
from squeeze.lm import adapter as adapters, models
from squeeze.recipes.train.adapt import LENGTH, RANK, Passages, adapt, fill
from squeeze.recipes.train.distil import Training
from training import corpus as corpora
from training.corpus import Split

# Of tokens, by kind: plain text first, since what is regular compresses well whatever the model knows.
SHARES = {
    "books": 15, "docs": 18, "code": 22, "wiki": 12, "languages": 8,
    "html": 7, "json": 6, "mail": 4, "logs": 4, "csv": 4,
}  # fmt: skip
_BYTES = 8  # of a token, at most on average: what is tokenised to be cut


def passages(model: models.LoadedModel, split: Split, kind: int, count: int, length: int, seed: int) -> Passages:
    """Return `count` passages of one kind, each from a random place of a document.

    Args:
        model: the language model, whose tokenizer is used
        split: part of the corpus
        kind: number of the kind
        count: number of passages
        length: tokens of a passage
        seed: seed of the choice
    """
    rng = np.random.default_rng([seed, kind])
    numbers = np.flatnonzero(split.kind == kind)
    weights = split.size[numbers] / split.size[numbers].sum()
    rows, size = np.full((count, length + 1), -1, np.int64), 0
    for row in rows:
        filled = 0
        while filled <= length:
            document = split.document(int(rng.choice(numbers, p=weights)))
            place = 0 if rng.random() < 0.3 else document.find(b"\n", int(rng.integers(len(document)))) + 1
            size += fill(row, filled, model, document[place : place + _BYTES * length])
            filled = int((row >= 0).sum())
    return Passages(torch.from_numpy(rows), size)


@click.command()
@click.option(
    "--corpus", type=click.Path(path_type=Path, exists=True), required=True, help="Folder that prepare wrote."
)
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True),
    required=True,
    help="Folder that `squeeze import smollm2` wrote.",
)
@click.option("--into", type=click.Path(path_type=Path), required=True, help="File of the adapter.")
@click.option("--steps", default=320, show_default=True)
@click.option("--rank", default=RANK, show_default=True)
@click.option("--rate", default=4e-4, show_default=True)
@click.option("--batch", default=4, show_default=True, help="Passages per step.")
@click.option("--length", default=LENGTH, show_default=True, help="Tokens of a passage.")
@click.option("--held", default=6, show_default=True, help="Held-out passages of each kind.")
@click.option("--seed", default=1, show_default=True, help="Seed of the passages.")
@click.option("--start", type=click.Path(path_type=Path, exists=True), help="Adapter of the same rank to start from.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--threads", default=0, help="Threads of torch; 0 for all.")
def main(
    corpus: Path, model: Path, into: Path, steps: int, rank: int, rate: float, batch: int, length: int, held: int,
    seed: int, start: Path | None, device: str, threads: int,
) -> None:  # fmt: skip
    """Train an adapter of MODEL on CORPUS. A run with the same settings continues where the last one stopped."""
    if threads:
        torch.set_num_threads(threads)
    kinds, found = corpora.names(corpus)["kinds"], models.find(model, models.NO_ADAPTER)
    train, held_out = corpora.read(corpus, "train"), corpora.read(corpus, "held_out")
    counts = {kind: -(-steps * batch * SHARES[kind] // sum(SHARES.values())) for kind in kinds}
    parts = [passages(found, train, i, counts[kind], length, seed) for i, kind in enumerate(kinds)]
    learned = Passages(torch.cat([part.tokens for part in parts]), sum(part.size for part in parts))
    tested = {kind: passages(found, held_out, i, held, length, 0) for i, kind in enumerate(kinds)}
    click.echo(f"{len(learned.tokens)} passages of {learned.size} bytes", err=True)
    training = Training(minutes=0, steps=steps, rate=rate, batch=batch, device=device)

    def log(step: int, loss: float) -> None:
        click.echo(f"step {step} of {steps}: {loss:.4f} nats a token", err=True)

    done = adapt(
        load_model(model, torch.float32, device),
        learned,
        tested,
        into,
        training,
        rank,
        log,
        adapters.load(start) if start else None,
    )
    facts: dict[str, object] = {"steps": steps, "rank": rank, "rate": rate, "batch": batch, "length": length}
    facts |= {"seed": seed, "start": start and str(start)}
    click.echo(json.dumps({**facts, "bytes": learned.size, **asdict(done)}))


if __name__ == "__main__":
    main()
