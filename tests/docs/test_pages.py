"""Paths, commands, names and benchmarks that pages mention exist, and every method page has its sections."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import squeeze
from bench import records
from bench.measure import MEASURES
from squeeze import cli
from tests.docs.pages import DOCS, LESSONS, PAGES, ROOT, name_of

_CODE = re.compile(r"`((?:squeeze|tests|bench|docs)/[\w./-]+)`")
_BENCHMARK = re.compile(r"`python -m bench ([\w-]+)")
_LINK = re.compile(r"\]\(([^)#\s]+?)(?:#[\w-]+)?\)")
_METHODS = sorted(DOCS.glob("how/*/*.md"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_exist(page: Path):
    named = [path for path in _CODE.findall(page.read_text("utf-8")) if "NAME" not in path]
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_benchmarks_exist(page: Path):
    assert set(_BENCHMARK.findall(page.read_text("utf-8"))) <= {*MEASURES, "docs", "NAME"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path):
    links = [link for link in _LINK.findall(page.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", _METHODS, ids=name_of)
def test_a_method_page_has_its_four_sections(page: Path):
    headings = re.findall(r"^## (.+)$", page.read_text("utf-8"), re.MULTILINE)
    assert headings == ["How it works", "Cost and benefit", "Source", "Code"]


def test_every_layer_is_on_the_map():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    page = (DOCS / "architecture.md").read_text("utf-8")
    assert [name for layer in layers for name in layer.split(" | ") if f"`{name}`" not in page] == []


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [
        page for page in map(str, (p.relative_to(DOCS) for p in DOCS.rglob("*.md"))) if page not in navigation
    ] == []


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "reference" / "python.md").read_text("utf-8")
    entries = re.findall(
        r"^::: (squeeze\.[\w.]+)(?:\n    options:\n      heading: (squeeze\.[\w.]+))?$", page, re.MULTILINE
    )
    named = {(heading or place).rpartition(".") for place, heading in entries}
    assert {name for module, _, name in named if module == "squeeze"} == set(squeeze.__all__)
    assert set(re.findall(r"`squeeze\.(\w+)`", page)) <= set(squeeze.__all__)
    for module, _, name in named:
        assert name in import_module(module).__all__


def test_every_command_is_in_a_guide():
    lessons = "".join(page.read_text("utf-8") for page in LESSONS[1:])
    assert [name for name in cli.main.commands if f"squeeze {name} " not in lessons] == []


def test_readme_has_at_most_90_lines_and_its_pictures_exist():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 90
    pictures = re.findall(r"!\[.+\]\((.+)\)", readme)
    assert len(pictures) == readme.count("![") <= 3
    assert all((ROOT / picture).is_file() for picture in pictures)


def test_the_figures_of_the_readme_are_those_of_the_records():
    text = {row["tool"]: row["bytes"] for row in records.rows("public")}
    packed = next(row for row in records.rows("lossless") if row["checkpoint"] == "minilm-bf16")
    gguf = next(row for row in records.rows("gguf") if row["type"].startswith("q4_k"))
    lead = (ROOT / "README.md").read_text("utf-8").partition("##")[0].replace("\n", " ")
    assert f"{1 - text['squeeze -6'] / text['xz -9e']:.0%} smaller".replace("%", " %") in lead
    assert f"shrink to {packed['squeeze'] / packed['raw']:.0%}".replace("%", " %") in lead
    assert f"lose {gguf['of imatrix']:.0%}".replace("%", " %") in lead


def test_a_caption_is_one_line_of_at_most_120_characters():
    pages = "".join(page.read_text("utf-8") for page in PAGES)
    captions = re.findall(r"^\*Measured .+", pages, re.MULTILINE)
    assert captions
    assert [caption for caption in captions if len(caption) > 120] == []


def test_readme_says_nothing_twice():
    readme = (ROOT / "README.md").read_text("utf-8").replace("<!-- end -->", "")
    lines = [line for line in readme.splitlines() if len(line) > 8]
    assert sorted(set(lines)) == sorted(lines)
