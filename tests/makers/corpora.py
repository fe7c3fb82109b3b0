"""Make a small corpus."""

import json
from pathlib import Path

import numpy as np

from training.corpus import SPLITS, write
from training.documents import Document

NAMES = {"kinds": ["code", "prose"], "sources": ["made"]}


def documents(count: int = 10, seed: int = 0) -> list[Document]:
    generator = np.random.default_rng(seed)
    texts = [generator.choice([*b"abc def\n"], generator.integers(1, 100)).astype(np.uint8) for _ in range(count)]
    return [Document(NAMES["kinds"][n % 2], "made", str(n), texts[n].tobytes()) for n in range(count)]


def corpus_of(path: Path, count: int = 10) -> Path:
    folder = path / "corpus"
    folder.mkdir()
    described = {split: write(folder, split, documents(count, seed), NAMES) for seed, split in enumerate(SPLITS)}
    (folder / "corpus.json").write_text(json.dumps(NAMES | described))
    return folder
