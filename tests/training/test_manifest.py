"""The rules of the manifest, and the kinds of files."""

import copy
import tomllib
from typing import Any

import pytest

from training.manifest import MANIFEST, ManifestError, load, parse, tables


@pytest.fixture
def table() -> dict[str, Any]:
    entry = {"licence": "MIT", "commit": "0" * 40, "sha256": "0" * 64}
    return {
        "host": "https://example.com/",
        "licences": ["MIT"],
        "leave": ["*/vendor/*"],
        "kept_out": ["wikitext"],
        "kinds": {
            "docs": {"share": 0.25, "megabytes": 1, "endings": ["md"]},
            "code": {"share": 0.75, "megabytes": 1, "endings": ["py"], "names": ["Makefile"]},
            "languages": {"share": 0.0, "megabytes": 1},
        },
        "sources": {"one/project": {**entry, "languages": ["docs/de/*"]}},
    }


def test_the_manifest_keeps_its_rules() -> None:
    manifest = load()
    assert sum(kind.share for kind in manifest.kinds.values()) == pytest.approx(1)
    assert len(manifest.sources) > 150
    assert {source.licence for source in manifest.sources.values()} <= manifest.licences
    assert not any("GPL" in name or "SA" in name or "NC" in name for name in manifest.licences)


@pytest.mark.parametrize(
    "name",
    ["standardebooks/charles-dickens_bleak-house", "simonw/llm", "mozilla/gecko-dev", "a/enwik8", "b/wikitext-2"],
)
def test_what_benchmarks_measure_is_refused(name: str) -> None:
    table = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))
    table["sources"][name] = {"licence": "MIT", "commit": "0" * 40, "sha256": "0" * 64}
    with pytest.raises(ManifestError, match="kept out"):
        parse(table)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("README.md", "docs"),
        ("src/a.py", "code"),
        ("Makefile", "code"),
        ("docs/de/a.md", "languages"),
        ("x/vendor/a.py", None),
        ("data/wikitext.md", None),
        ("a.png", None),
    ],
)
def test_a_name_decides_the_kind(table: dict[str, Any], path: str, kind: str | None) -> None:
    manifest = parse(table)
    assert manifest.kind_of(manifest.sources["one/project"], path) == kind


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"licence": "GPL-3.0"}, "licence"),
        ({"commit": "main"}, "in full"),
        ({"kind": "music"}, "no kind"),
        ({"x": 1}, "unknown"),
    ],
)
def test_a_broken_rule_is_named(table: dict[str, Any], change: dict[str, Any], message: str) -> None:
    table["sources"]["one/project"] |= change
    with pytest.raises(ManifestError, match=message):
        parse(table)


def test_shares_add_up_to_one(table: dict[str, Any]) -> None:
    broken = copy.deepcopy(table)
    broken["kinds"]["docs"]["share"] = 0.5
    with pytest.raises(ManifestError, match="add up"):
        parse(broken)


def test_tables_name_every_source() -> None:
    manifest = load()
    text = "\n".join(tables(manifest))
    assert all(f"[{name}]" in text for name in manifest.sources)


def test_the_readme_has_the_tables() -> None:
    readme = MANIFEST.with_name("README.md").read_text(encoding="utf-8")
    assert readme.endswith("\n".join(tables(load())) + "\n"), "run python -m training.manifest and put its tables there"
