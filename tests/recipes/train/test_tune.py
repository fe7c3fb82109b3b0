"""Networks tuned on samples: gains, resuming, and errors."""

from pathlib import Path

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream import training as dictionaries
from squeeze.errors import DictionaryError, LevelError, SqueezeError
from squeeze.recipes.train import trainer, tune as tuning
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.tune import tune
from tests.makers import inputs
from tests.makers.cases import every

RECORDS = [b'{"id": %d, "sha": "%x", "ok": %s}\n' % (i, i * i, b"true" if i % 3 else b"false") for i in range(60)]


@pytest.fixture
def samples(tmp_path: Path) -> list[Path]:
    for number, record in enumerate(RECORDS):
        (tmp_path / f"{number:02}.json").write_bytes(record)
    return sorted(tmp_path.glob("*.json"))


@pytest.mark.parametrize("files", every(2, [1, 4]))
def test_a_few_records_or_one_file_are_enough(files, tmp_path):
    text = inputs.python_text(1100 * files)
    paths = [tmp_path / f"{number}.py" for number in range(files)]
    for number, path in enumerate(paths):
        path.write_bytes(text[1100 * number : 1100 * (number + 1)])
    done = tune(paths, tmp_path / "out.sqzp", training(1), text_size=0)
    assert done.steps == 1 and 0 < done.sizes.raw < len(text) / 8
    assert squeeze.decompress(squeeze.compress(text, dictionary=done.dictionary), dictionary=done.dictionary) == text


def training(steps: int, **settings) -> Training:
    return Training(minutes=0, steps=steps, batch=2, **settings)


def test_it_learns_and_is_used(samples, tmp_path):
    out, told = tmp_path / "out.sqzp", []
    steps = training(20, progress=lambda *step: told.append(step))
    done = tune(samples, out, steps, text_size=0)
    assert done.steps == len(told) == 20
    assert done.after < 0.8 * done.before
    assert done.sizes.tuned < done.sizes.plain < done.sizes.alone < done.sizes.raw
    assert done.changes_network and done.dictionary.identity == squeeze.Dictionary.read(out).identity
    coded = squeeze.compress(RECORDS[7], dictionary=out)
    assert squeeze.decompress(coded, dictionary=out) == RECORDS[7]
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(SqueezeError, match="already exists; use `overwrite=True` to overwrite"):
        tune(samples, out, training(1))


def test_a_stopped_run_gives_the_same(samples, tmp_path, monkeypatch):
    def stop(label, done, total):
        if done == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "_SAVE_EVERY", 2)
    monkeypatch.setattr(tuning, "_better", lambda divided, lessons, *args: (made(args[-1]), None))
    whole = tune(samples, tmp_path / "whole.sqzp", training(5))
    with pytest.raises(KeyboardInterrupt):
        tune(samples, tmp_path / "out.sqzp", training(5, progress=stop))
    again = tune(samples, tmp_path / "out.sqzp", training(5, resume=True))
    assert again.dictionary.identity == whole.dictionary.identity
    with pytest.raises(SqueezeError, match="already exists"):
        tune(samples, tmp_path / "out.sqzp", training(6, resume=True))


def made(change):
    """Make a dictionary with little besides a change."""
    content, pieces = dictionaries.sample_pieces(RECORDS[:40])
    return dictionaries.make(5, content, dictionaries.TrainingPieces([], pieces[:2], []), 1 << 10, change)


def test_what_makes_files_no_smaller_is_not_kept(samples, tmp_path):
    done = tune(samples, tmp_path / "out.sqzp", training(2, rate=1.0), text_size=0)
    assert done.sizes.tuned > done.sizes.plain and not done.changes_network
    assert done.dictionary.identity == squeeze.train(samples, level=5, text_size=0).identity


def test_refuses_other_levels_tables_and_small_samples(samples, tmp_path):
    with pytest.raises(LevelError, match="level 4 has no network: train at level 5 or 6"):
        tune(samples, tmp_path / "out", training(1), level=4)
    (tmp_path / "table").write_bytes(inputs.records(800))
    with pytest.raises(DictionaryError, match="the samples are tables, which are coded without the network"):
        tune([tmp_path / "table"], tmp_path / "out", training(1))
    with pytest.raises(DictionaryError, match="a dictionary needs at least 1024 bytes of samples"):
        tune(samples[:3], tmp_path / "out", training(1))
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_programs_are_measured_as_they_are():
    data = np.frombuffer(inputs.machine_code(4_000), np.uint8)
    content, (seen, *_) = dictionaries.sample_pieces([data.tobytes()])
    assert content.kind == "executable" and not np.array_equal(seen, data[: seen.size])
    (piece,) = tuning._unfiltered([seen], content)
    assert np.array_equal(piece, data[: seen.size])


def test_without_zstd_there_is_nothing_to_compare_with(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert tuning.best_of_zstd([], []) is None
