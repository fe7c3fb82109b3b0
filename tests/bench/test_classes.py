"""Every operation works with models of classes that are no decoders, as `bench classes` shows. Some always run."""

import argparse
from pathlib import Path

import pytest

from bench.measures import classes
from tests.makers import zoo_others

pytest.importorskip("transformers", reason="transformers is not installed")

QUICK = ("BertForMaskedLM", "T5EncoderModel")


def row(name: str, folder: Path) -> dict[str, object]:
    (found,) = classes.rows(argparse.Namespace(classes=[name], work=folder))
    return found


@pytest.mark.parametrize("name", QUICK)
def test_a_class_is_compressed_and_loaded(name: str, tmp_path: Path) -> None:
    found = row(name, tmp_path)
    assert found["format"] == ("squeeze" if name.startswith("T5") else "compressed-tensors")
    assert all(0 < float(str(found[cell])) < 1 for cell in ("quantize", "prune 2:4", "factorize"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(zoo_others.KINDS) - set(QUICK)))
def test_every_other_class_is_compressed_and_loaded(name: str, tmp_path: Path) -> None:
    found = row(name, tmp_path)
    assert all(float(str(found[cell])) < 3 for cell in ("quantize", "prune 2:4", "factorize"))


def test_there_are_at_least_25_classes() -> None:
    assert len(zoo_others.KINDS) >= 25
