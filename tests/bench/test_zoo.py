"""Each operation works with models of every architecture, or is refused in one line.

Some always run, all if slow.
"""

from pathlib import Path

import pytest

import squeeze
from bench.measures.zoo import CELLS

pytest.importorskip("transformers", reason="transformers is not installed")

from tests.makers import zoo, zoo_cells
from tests.makers.cases import all_slow_but

# Each has another kind of attention, cache, experts or stored weights.
QUICK = ("bloom", "deepseek_v3", "falcon", "gemma3n_text", "gpt2", "gpt_oss", "mamba", "qwen3_next")


def test_the_columns_of_the_docs_are_the_cells_that_are_tried() -> None:
    assert tuple(zoo_cells.CELLS) == CELLS


def test_every_architecture_is_made_or_has_a_reason() -> None:
    assert zoo.UNMADE.keys() | zoo.SETTINGS.keys() <= set(zoo.architectures())
    for name in zoo.architectures():
        if name not in zoo.UNMADE:
            zoo.config(name)


def test_the_page_says_why_an_architecture_is_not_tried() -> None:
    page = (Path(squeeze.__file__).parents[1] / "docs" / "reference" / "architectures.md").read_text()
    for name, reason in zoo.UNMADE.items():
        assert f"| {name} | {reason} |" in page


def faults(name: str, folder: Path) -> dict[str, str]:
    return {cell: found for cell, found in zoo_cells.outcomes(name, folder) if found.startswith("fault")}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", all_slow_but(("gpt2",), QUICK))
def test_no_cell_is_a_fault(name: str, tmp_path: Path) -> None:
    assert faults(name, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", sorted(set(zoo.architectures()) - set(zoo.UNMADE) - set(QUICK)))
def test_no_cell_of_any_other_is_a_fault(name: str, tmp_path: Path) -> None:
    assert faults(name, tmp_path) == {}
