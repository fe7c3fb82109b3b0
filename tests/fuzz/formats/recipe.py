"""A recipe: YAML, whose bombs and tags are as hostile as its settings."""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from squeeze.recipes.apply import Recipe as Read
from tests.fuzz import mutations
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of

_SAMPLES: tuple[dict[str, Any], ...] = (
    {"samples": 4, "sequence_length": 48, "steps": [{"prune": {"pattern": "2:4"}}, {"quantize": {"bits": 4}}, "pack"]},
    {
        "calibration": "wiki.txt",
        "steps": [{"quantize": {"method": "gptq", "bits": 3, "group_size": 32, "smooth": 0.2}}],
    },
    {
        "seed": 3,
        "ignore": ["lm_head"],
        "steps": [{"factorize": {"method": "svd", "bits": 4}}, {"pack": {"level": "archive"}}],
    },
    {"steps": [{"prune": {"method": "wanda", "pattern": "4:8"}}, {"recover": {"steps": 1, "rank": 2}}, "pack"]},
    {"steps": [{"quantize": {"target_bits": 3.5, "rotate": True}}]},
)
_TEXTS = (
    "samples: 4\nsteps:\n  - prune: {pattern: 2:4, permute: true}\n  - quantize: {bits: 4}\n  - pack\n",
    "ignore: &names [lm_head]\nsteps:\n  - quantize:\n      bits: 4\n      group_size: 32\n",
    "# words\n---\nsteps: [quantize]\n...\n",
)
_VALUES = (
    *("!!python/object/apply:os.system ['true']", "!!int x", "!!float x", "!!binary '===='", "!!set {a, b}", "!own x"),
    *("!!timestamp x", "!!omap [a]", "!!pairs 3", "!!null 3", "!!bool maybe", "!!map [1]", "!!str {a: b}", "*missing"),
    *("&a [*a]", "&a {b: *a}", "? {a: b} : c", "0x" + "f" * 6_000, "9" * 6_000, "1_000", "1:2:3:4", "9" * 400 + ":00"),
    *(
        "2024-02-30",
        "2024-99-99 99:99:99",
        ".inf",
        "-.inf",
        ".nan",
        "1e999",
        "0b2",
        "0o9",
        "~",
        "|\n  a",
        ">-\n",
        "'\\x00'",
    ),
    *(
        '"\\ud800"',
        '"\\x07"',
        "\x07",
        "\ufeff",
        "%TAG ! x",
        "{a: b, a: c}",
        "{[1]: 2}",
        "{{}: 1}",
        "- - - -",
        "a: b: c",
    ),
    *(
        "[" * 400 + "]" * 400,
        "{a: " * 400 + "1" + "}" * 400,
        "[" * 20_000,
        "- " * 3_000 + "x",
        "\t- x",
        "@x",
        "`x`",
        "% x",
    ),
)


@dataclass(frozen=True)
class Case:
    data: bytes


class Recipe:
    """Recipes of every step, as JSON, which is YAML, and as people write them."""

    seconds = 0.01

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        texts = [*(mutations.to_json(sample) for sample in _SAMPLES), *_TEXTS]
        self.samples = [text.encode() for text in texts]
        self.known = set()
        for data in self.samples:
            (folder / "recipe.yaml").write_bytes(data)
            self.known.add(repr(Read.read(folder / "recipe.yaml")))

    def mutate(self, random: Random) -> Case:
        data = random.choice(self.samples)
        changed = one_of(
            random,
            (3, lambda r: mutations.damaged(data, r)),
            (1, lambda r: mutations.spliced(data, r.choice(self.samples), r)),
            (5, lambda r: _json(mutations.mutated(r.choice(_SAMPLES), r))),
            (3, lambda r: _yaml(data, r)),
            (1, _aliases),
        )
        return Case(changed)

    def read(self, case: Case, folder: Path) -> str:
        path = folder / "recipe.yaml"
        path.write_bytes(case.data)
        found = Read.read(path)
        if not isinstance(found, Read) or not found.steps:
            raise Wrong("read: no recipe")
        return SAME if repr(found) in self.known else TRUE


def _json(value: Any) -> bytes:
    return mutations.to_json(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _yaml(data: bytes, random: Random) -> bytes:
    """A value or a key that only YAML has."""
    places = [at for at in range(len(data)) if data[at : at + 1] in b"0123456789:,"]
    at = random.choice(places)
    value = random.choice(_VALUES).encode()
    return data[:at] + (b" " + value if data[at : at + 1] == b":" else value) + data[at + random.randrange(2) :]


def _aliases(random: Random) -> bytes:
    """Lists of lists of lists, each by its name."""
    depth, width = random.choice((3, 9, 25)), random.choice((2, 9))
    lines = [f"a0: &a0 [{', '.join('x' * width)}]"]
    merge = random.random() < 0.3
    for i in range(1, depth):
        names = [f"*a{i - 1}"] * width
        lines.append(f"a{i}: &a{i} " + (f"{{<<: [{', '.join(names)}]}}" if merge else f"[{', '.join(names)}]"))
    lines[0] = "a0: &a0 {x: 1}" if merge else lines[0]
    place = random.choice((f"steps: *a{depth - 1}", f"steps: [{{quantize: {{bits: *a{depth - 1}}}}}]", "steps: [pack]"))
    return "\n".join([*lines, place]).encode()


FORMAT = Recipe
