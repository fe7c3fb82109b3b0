"""Models of classes that are no decoders are quantised, pruned and factorised, and loaded. Some always run."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.network import Network
from squeeze.engine.outputs import compare_outputs
from squeeze.integrations.load_model import load_model
from tests.makers import zoo_others

QUICK = ("BertForMaskedLM", "T5EncoderModel")
PAGE = Path(squeeze.__file__).parents[1] / "docs" / "reference" / "architectures.md"
OPERATIONS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "quantize": ((), {"group_size": 32}),
    "prune": ((), {}),
    "factorize": (("whitened",), {"keep": 0.9}),
}
SAME = 2e-3  # relative error of outputs compared with the dense form of the same weights, or
SHARE = 0.05  # of the error compared with the original, if that is more
OWN = "wants its dense weight"  # in the refusal of the default format


def check(name: str, work: Path) -> None:
    """Compare the outputs of each result with those of its dense form, of the original, and with the page."""
    source, inputs = zoo_others.write(work / "model", name), zoo_others.samples(name, 2, seed=7)
    original = load_model(source)
    for function, (arguments, settings) in OPERATIONS.items():
        shared = {"out": work / "out", "calibration": zoo_others.samples(name, 4), "overwrite": True, **settings}
        format = with_format(getattr(squeeze, function), source, *arguments, **shared)
        model = load_model(work / "out")
        squeeze.densify(work / "out", work / "dense", overwrite=True)
        apart = max(one.error for one in compare_outputs(model, load_model(work / "dense"), inputs))
        error = max(one.error for one in compare_outputs(model, original, inputs))
        assert 0 < error < 3 and apart <= max(SAME, SHARE * error)
        if function == "quantize":
            assert line_of_page(name) == f"| `{name}` | `{blocks(source, name)}` | {format} |"


def with_format(function: Any, *arguments: Any, **settings: Any) -> str:
    """Run an operation, in squeeze's own format if transformers cannot load the default one. Return the format."""
    try:
        function(*arguments, **settings)
        return "compressed-tensors"
    except squeeze.SqueezeError as error:
        if OWN not in str(error):
            raise
        function(*arguments, **settings, format="squeeze")
        return "squeeze"


def blocks(source: Path, name: str) -> str:
    network = Network(Checkpoint.open(source))
    network.settle(zoo_others.samples(name, 4))
    return ", ".join(stack[0].rpartition(".")[0] if len(stack) > 1 else stack[0] for stack in network.stacks)


def line_of_page(name: str) -> str:
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    return line


@pytest.mark.parametrize("name", QUICK)
def test_a_class_is_compressed_and_loaded(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(zoo_others.KINDS) - set(QUICK)))
def test_every_other_class_is_compressed_and_loaded(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def test_the_page_has_every_class() -> None:
    for name in zoo_others.KINDS:
        assert line_of_page(name)
    assert len(zoo_others.KINDS) >= 25
