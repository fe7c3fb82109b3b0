"""Regular expressions of other writers are taken, and those that never end are not."""

import pytest

from squeeze.errors import FormatError
from squeeze.quant.bits import Rule
from squeeze.quant.formats.spec import matches

NAME = "model.layers.31.mlp.experts.127.gate_proj"


@pytest.mark.parametrize(
    ("pattern", "fitting"),
    [
        (r".*lm_head", False),
        (r".*mlp\.(gate|up)_proj$", False),
        (r"model\.layers\.\d+\..*", True),
        (r".*mlp\..*(gate|up)_proj$", True),
        (r"(?:model\.)?layers\.\d{1,3}\.mlp.*", True),
        (r".*\.layers\.(" + "|".join(map(str, range(3, 61))) + r")\.mlp\.experts\.\d+\.(gate|up|down)_proj", True),
        (r"^model\.layers\.[0-9]+\.(self_attn|mlp)\..*?_proj$", True),
        (r"[()*+]*model", True),
        *((Rule.of(name, 4).pattern, name == "experts") for name in ("experts", "attention", "mlp")),
    ],
)
def test_what_is_written_is_taken(pattern, fitting):
    assert matches(pattern, NAME) == fitting


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(a|aa)+$", r"^the pattern '\(a\|aa\)\+\$' in the quantization_config could take long: it repeats a group$"),
        ("(?:m+)*$", "it repeats a group$"),
        (r"(?P<x>\w\w?){9,}$", "it repeats a group$"),
        ("(a|aa)" * 30 + "$", "could take long: let it repeat and choose less$"),
        ("a?" * 40 + "a" * 40, "could take long: let it repeat and choose less$"),
        (".*" * 9 + "x", "could take long: let it repeat and choose less$"),
        ("}?" * 40 + "}" * 40, "could take long: let it repeat and choose less$"),
        ("(?#[)(a|aa)+(?#])", "has comments: leave them out$"),
        ("(?x)# [\n(a|aa)+", "has comments: leave them out$"),
        ("a" * 5000, "has 5000 characters: use at most 4096$"),
        ("(", "is not a regular expression: missing "),
    ],
)
def test_what_could_take_long_is_refused(pattern, message):
    with pytest.raises(FormatError, match=message):
        matches(pattern, NAME)
