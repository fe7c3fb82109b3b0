"""Options as fields of dataclasses: what a value may be, and what is said of a wrong one."""

import subprocess
import sys
from dataclasses import dataclass, fields

import pytest

from squeeze.errors import OptionError
from squeeze.operations import Operation
from squeeze.options import Checked, Lazy, check, load, option, options_of, size_of
from squeeze.recipes.options import EXPERTS, FACTORIZE, PACK, PRUNE, QUANTIZE

REFERENCES = [
    one
    for operation in (EXPERTS, FACTORIZE, PRUNE, QUANTIZE)
    for one in operation.methods.values()
    if isinstance(one, Lazy)
]


@dataclass(frozen=True, kw_only=True)
class Parent(Checked):
    share: float = option(0.5, "How much.", above=0, most=1)
    size: int | None = option(None, "How large.", least=1, unit="bytes")


@dataclass(frozen=True, kw_only=True)
class Child(Parent):
    size: int | None = option(4096, "How large.", least=1, unit="bytes")
    names: tuple[str, ...] = option((), "Which.")
    kind: str = option("plain", "Of which kind.", choices=("plain", "coloured"))
    hidden: float = 0.0


TOY = Operation("toy", Parent, {"child": Child, "other": Lazy(Parent, f"{__name__}:Parent")}, "child")


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda one: one.place)
def test_a_method_has_the_options_that_are_told_without_it(reference):
    assert issubclass(load(reference), reference.options)
    assert options_of(load(reference)) == options_of(reference)


@pytest.mark.parametrize("operation", (EXPERTS, FACTORIZE, PRUNE, QUANTIZE, PACK), ids=lambda one: one.name)
def test_an_option_means_the_same_wherever_it_is(operation):
    """No name belongs to a method and to the pass; methods that share one agree on its type, and all have a help."""
    mine = {one.name for one in options_of(operation.settings)}
    seen = {}
    for reference in operation.methods.values():
        for one in options_of(reference):
            assert one.name not in mine
            assert seen.setdefault(one.name, one).types == one.types
    for owned in operation.options().values():
        assert owned.option.help[-1] not in ".,;:", owned.option.name


def test_every_plain_field_of_a_method_is_an_option():
    plain, of_a_scheme = {"int", "float", "bool", "str"}, {"activations"}
    for reference in REFERENCES:
        known = {one.name for one in options_of(reference)}
        for entry in fields(load(reference)):
            name = entry.type if isinstance(entry.type, str) else getattr(entry.type, "__name__", str(entry.type))
            is_plain = name.split(" | ")[0] in plain and entry.name not in of_a_scheme
            assert entry.name in known or not is_plain, (reference, entry.name)


def test_nothing_heavy_is_imported_to_tell_options():
    code = (
        "import sys; from squeeze.recipes.options import *; [one.options() for one in (PRUNE, QUANTIZE, FACTORIZE)]; "
        "print({'numba', 'numpy', 'torch', 'tqdm', 'click'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_child_declares_anew_and_adds():
    assert [(one.name, one.default) for one in options_of(Child)] == [
        ("share", 0.5),
        ("size", 4096),
        ("names", ()),
        ("kind", "plain"),
    ]
    found = options_of(FACTORIZE.methods["blast"])
    assert {one.name: one.default for one in found} == {"keep": 0.9, "blocks": 2, "rounds": 3}


def test_values_are_read():
    asked = TOY.read({"size": "64K", "names": ["a", "b"], "share": 1})
    assert asked.create_method() == Child(names=("a", "b"))
    assert asked.settings == Parent(size=65536, share=1)


MESSAGES = {
    "'zzz' is unknown: choose from method, share, size, names, kind": {"zzz": 1},
    "'sise' is unknown: choose from method, share, size, names, kind; nearest is size": {"sise": 1},
    "share must be a number, got 'x'": {"share": "x"},
    "share must be a number, got True": {"share": True},
    "names must be a list of strings, got 'ab'": {"names": "ab"},
    "size must be an integer, got 1.5": {"size": 1.5},
    "size must be at least 1, got 0": {"size": 0},
    "share must be above 0 and at most 1, got 0": {"share": 0},
    "share must be above 0 and at most 1, got 1.5": {"share": 1.5},
    "kind 'x' is unknown: choose from plain, coloured": {"kind": "x"},
    "method 'x' is unknown: choose from child, other": {"method": "x"},
    "method {} is unknown: choose from child, other": {"method": {}},
    "method [None] is unknown: choose from child, other": {"method": [None]},
    "'1T' is not a size such as 65536, 64K or 4M": {"size": "1T"},
}


@pytest.mark.parametrize("message", MESSAGES)
def test_what_is_wrong_is_said_in_one_line(message):
    with pytest.raises(OptionError) as found:
        TOY.read(MESSAGES[message])
    assert str(found.value) == message


def test_bounds_hold_for_a_class_by_itself():
    with pytest.raises(OptionError, match="share must be above 0 and at most 1, got 2"):
        Child(share=2)
    check(Child(size=None))
    with pytest.raises(ValueError, match="size must be at least 1, got -1"):
        Child(size=-1)


def test_a_method_that_is_made_has_its_options_already():
    assert TOY.read({"share": 0.25}, Child()).create_method() == Child()
    with pytest.raises(OptionError, match=r"kind is an option of the method: pass it to Child\(...\)"):
        TOY.read({"kind": "plain"}, Child())


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("7", 7), ("1K", 1024), ("2m", 2 << 20), ("3G", 3 << 30)])
def test_sizes_have_suffixes_of_powers_of_1024(text, size):
    assert size_of(text) == size
