"""Formats of quantised checkpoints: bits where the standards want them, and every weight back as it was."""

import json
from dataclasses import replace

import pytest
import torch

from squeeze.checkpoint import quantized as packing
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError
from squeeze.quant.formats import FORMATS, Grid, QuantizationSpec, format_of, read
from squeeze.quant.formats.spec import BITS
from tests.makers.hf_models import tiny_model
from tests.makers.quantised import FP4, TRITS, matrix, rounded, write

INTEGERS = [Grid(b, size, symmetric) for b in BITS for size in (32, -1) for symmetric in (True, False)]


def same(first, second):
    """Return whether two weights are equal in every part."""
    parts = zip(vars(first).values(), vars(second).values(), strict=True)
    return all(equal(a, b) for a, b in parts)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and all(map(equal, a, b))
    return a == b


def spec_of(grid, **options):
    return QuantizationSpec(grid.bits, grid.group_size, grid.symmetric, grid.codebook, grid.outliers, **options)


def round_trip(format, weight, spec):
    return FORMATS[format].weight("m", FORMATS[format].tensors("m", weight, torch.bfloat16), spec)


@pytest.mark.parametrize("count", [0, 1, 5, 31, 32, 33, 100])
@pytest.mark.parametrize("width", range(1, 9))
def test_codes_are_a_stream_of_bits_from_the_lowest_up(width, count):
    codes = torch.randint(0, 1 << width, (3, count), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    words = packing.pack(codes, width)
    assert words.shape == (3, packing.words_for(count, width))
    stream = sum(code << (width * i) for i, code in enumerate(codes[1].tolist()))
    assert sum((word & 0xFFFFFFFF) << (32 * i) for i, word in enumerate(words[1].tolist())) == stream
    assert torch.equal(packing.unpack(words, width, count), codes)


@pytest.mark.parametrize("grid", INTEGERS, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_integers_come_back(format, grid):
    unfit = format == "awq" and (grid.bits, grid.symmetric) != (4, False)
    if format == "bitsandbytes" or unfit or (format.startswith("gptq") and grid.bits in (5, 6, 7)):
        with pytest.raises(FormatError, match=f"{format} (needs|stores)"):
            FORMATS[format].check(spec_of(grid))
        return
    weight = rounded(matrix(64, 96), grid, torch.float16 if format == "awq" else torch.bfloat16)
    if format == "gptq" and not grid.symmetric:
        weight = replace(weight, zeros=weight.zeros.clamp(min=1))
    assert same(weight, round_trip(format, weight, spec_of(grid)))


@pytest.mark.parametrize("shape", [(1, 1, -1), (5, 33, -1), (9, 70, 13), (3, 129, 64), (2, 31, 32)], ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("width", BITS)
def test_our_own_format_holds_every_width_in_every_shape(width, symmetric, shape):
    """Codes and zero points take the fewest words that hold them, and come back."""
    outputs, inputs, size = shape
    grid = Grid(width, size, symmetric)
    weight = rounded(matrix(outputs, inputs), grid)
    tensors = FORMATS["squeeze"].tensors("m", weight, torch.bfloat16)
    assert tensors["m.codes"].shape == (outputs, -(-inputs * width // 32))
    assert symmetric or tensors["m.zeros"].shape == (outputs, -(-weight.scales.shape[2] * width // 32))
    assert same(weight, FORMATS["squeeze"].weight("m", tensors, spec_of(grid)))


def test_mxfp4_nvfp4_ternary_and_outliers_come_back():
    codes = torch.randint(0, 16, (6, 40), dtype=torch.uint8)
    powers = 2.0 ** torch.randint(-9, 3, (1, 6, 2))
    narrow = torch.rand(1, 6, 3).to(torch.float8_e4m3fn).float()
    weights = {
        "mxfp4": (Grid(4, 32, codebook="mxfp4"), QuantizedTensor(codes, powers, None, 4, 32, FP4[None], scale_bits=8)),
        "nvfp4": (
            Grid(4, 16, codebook="nvfp4"),
            QuantizedTensor(codes, narrow, None, 4, 16, FP4[None], torch.tensor(0.3), scale_bits=8),
        ),
        "ternary": (
            Grid(4, 20, codebook="ternary"),
            QuantizedTensor(codes % 9, torch.rand(2, 6, 2), None, 4, 20, TRITS),
        ),
        "nf4": (Grid(4, 7, codebook="nf4"), rounded(matrix(6, 40), Grid(4, 7, codebook="nf4"))),
        "outliers": (Grid(3, 16, False, outliers=True), rounded(matrix(6, 40), Grid(3, 16, False, outliers=True))),
    }
    for name, (grid, weight) in weights.items():
        spec = spec_of(grid)
        assert same(weight, round_trip("squeeze", weight, spec)), name
        for format in ("gptq", "gptq_v2", *(() if name in ("mxfp4", "nvfp4") else ("compressed-tensors",))):
            with pytest.raises(FormatError, match="use the format squeeze"):
                FORMATS[format].check(spec)
            with pytest.raises(FormatError, match="use the format squeeze"):
                FORMATS[format].tensors("m", weight, torch.bfloat16)
    stored = FORMATS["squeeze"].tensors("m", weights["mxfp4"][1], torch.bfloat16)
    assert stored["m.scales"].dtype == torch.float8_e8m0fnu
    stored = FORMATS["squeeze"].tensors("m", weights["nvfp4"][1], torch.bfloat16)
    assert stored["m.scales"].dtype == torch.float8_e4m3fn


FLOATS = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()[None]
SCHEMES = {
    "int8": (Grid(8, -1, activations="int8-token"), (6, 1), None),
    "int4 in groups": (Grid(4, 32, activations="int8-token"), (6, 8), None),
    "int4 with zero points": (Grid(4, 32, False, activations="int8-token"), (6, 8), None),
    "fp8": (Grid(8, -1, codebook="fp8", activations="fp8-token"), (6, 1), FLOATS),
    "fp8, weights alone": (Grid(8, 64, codebook="fp8"), (6, 4), FLOATS),
    "fp8 of a matrix": (Grid(8, -1, codebook="fp8", rows=-1, activations="fp8-tensor"), (1, 1), FLOATS),
    "fp8 in blocks": (Grid(8, 128, codebook="fp8", rows=4, activations="fp8-group"), (2, 2), FLOATS),
    "nvfp4": (Grid(4, 16, codebook="nvfp4", activations="nvfp4"), (6, 16), FP4[None]),
    "mxfp4": (Grid(4, 32, codebook="mxfp4", activations="mxfp4"), (6, 8), FP4[None]),
}


def weight_on(grid, shape, codebook):
    """A weight [6, 256] of arbitrary codes, with scales of this shape."""
    torch.manual_seed(4)
    codes = torch.randint(0, 1 << grid.bits, (6, 256), dtype=torch.uint8)
    scales, narrow, factor = torch.rand(shape).bfloat16(), None, None
    if grid.codebook == "fp8":
        codes = codes.where(codes & 127 != 127, 0)  # no number
    if grid.codebook == "mxfp4":
        scales, narrow = 2.0 ** torch.randint(-9, 3, shape), 8
    if grid.codebook == "nvfp4":
        scales, narrow, factor = torch.rand(shape).to(torch.float8_e4m3fn).float(), 8, torch.tensor(2.0**-8)
    scales = scales.repeat_interleave(6 if shape[0] == 1 else grid.rows, 0)[None, :6].contiguous()
    zeros = None if grid.symmetric else torch.randint(0, 16, (6, 8), dtype=torch.uint8)
    ranged = torch.tensor(2.5) if grid.activations in ("nvfp4", "fp8-tensor") else None
    size = grid.inputs(256)
    return QuantizedTensor(codes, scales, zeros, grid.bits, size, codebook, factor, None, narrow, ranged)


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_of_compressed_tensors_come_back(name):
    (grid, _, codebook), format = SCHEMES[name], FORMATS["compressed-tensors"]
    weight, spec = weight_on(*SCHEMES[name]), QuantizationSpec.of_grid(grid, ignored=("lm_head",))
    found = format.weight("m", format.tensors("m", weight, torch.bfloat16, grid), spec)
    if weight.input_range is not None:
        assert torch.allclose(found.input_range.float(), weight.input_range, rtol=2**-8)
        found = replace(found, input_range=weight.input_range)
    assert same(replace(weight, codebook=None), replace(found, codebook=None)) and (
        codebook is None or torch.equal(codebook.nan_to_num(), found.codebook.nan_to_num())
    )
    config = json.loads(json.dumps(format.config(spec)))
    assert format.spec(config) == spec


@pytest.mark.parametrize(
    ("leaf", "tensor", "message"),
    [
        ("weight", torch.zeros(6, 256), "tensor m.weight: expected torch.int8, got torch.float32"),
        ("weight", torch.zeros(6, dtype=torch.int8), "m: expected a matrix"),
        ("weight", torch.full((6, 256), 9, dtype=torch.int8), "m: expected integers of 4 bits"),
        ("weight_scale", torch.ones(5, 8), r"tensor m.weight_scale: expected shape \[6, 8\], got \[5, 8\]"),
    ],
)
def test_integers_that_contradict_their_description(leaf, tensor, message):
    grid, format = SCHEMES["int4 in groups"][0], FORMATS["compressed-tensors"]
    tensors = format.tensors("m", weight_on(*SCHEMES["int4 in groups"]), torch.bfloat16, grid)
    with pytest.raises(FormatError, match=message):
        format.weight("m", {**tensors, f"m.{leaf}": tensor}, QuantizationSpec.of_grid(grid))


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("weights", {"strategy": "attn_head"}, "unsupported strategy"),
        ("weights", {"type": "float", "num_bits": 6}, r"unsupported weights of 6 bits \(float, group\)"),
        ("input_activations", {"num_bits": 6}, "unsupported input_activations "),
        ("format", "marlin-24", "got 'marlin-24'"),
    ],
)
def test_descriptions_that_are_not_known(part, changes, message):
    format = FORMATS["compressed-tensors"]
    config = format.config(QuantizationSpec.of_grid(SCHEMES["int4 in groups"][0]))
    group = config["config_groups"]["group_0"]
    group[part] = changes if part == "format" else {**group[part], **changes}
    with pytest.raises(FormatError, match=message):
        format.spec(config)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("actorder", ["group", "static"])
def test_compressed_tensors_reads_groups_in_any_order(symmetric, actorder):
    """A column has the scale of the group that is named for it, as in versions of the package that wrote such files."""
    weight, format = rounded(matrix(32, 64), Grid(4, 32, symmetric)), FORMATS["compressed-tensors"]
    spec = QuantizationSpec(4, 32, symmetric)
    tensors = format.tensors("m", weight, torch.bfloat16)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2)).int() % 2
    named = actorder == "group"
    tensors["m.weight_g_idx"] = order if named else torch.full_like(order, -1)
    config = format.config(spec)
    config["config_groups"]["group_0"]["weights"]["actorder"] = actorder
    found = format.weight("m", tensors, format.spec(config)).dequantize()
    dense = weight.dequantize()
    for column in range(64):
        group = int(order[column]) if named else column // 32
        zero = 8 if weight.zeros is None else weight.zeros[:, group].float()
        expected = (weight.codes[:, column].float() - zero) * weight.scales[0, :, group].float()
        assert torch.equal(found[:, column], expected)
    assert torch.equal(found, dense) != named
    tensors["m.weight_g_idx"] = order + 1
    with pytest.raises(FormatError, match="m: weight_g_idx has a group number outside 0 to"):
        format.weight("m", tensors, format.spec(config))


def test_gptq_stores_zero_points_less_one():
    weight = rounded(matrix(32, 64), Grid(4, 32))
    first = FORMATS["gptq"].tensors("m", weight, torch.bfloat16)
    second = FORMATS["gptq_v2"].tensors("m", weight, torch.bfloat16)
    assert (first["m.qzeros"] == 0x77777777).all()
    assert (second["m.qzeros"] == 0x88888888 - (1 << 32)).all()
    assert torch.equal(first["m.qweight"], second["m.qweight"])
    assert first["m.g_idx"].tolist() == [0] * 32 + [1] * 32


def test_gptq_takes_borrows_between_zero_points_as_gptqmodel_writes_them():
    """Packed words of version 2 less 0x11111111, where a zero point of 0 borrows from the next."""
    weight = replace(rounded(matrix(8, 8), Grid(4, -1, False)), zeros=torch.arange(8, dtype=torch.uint8)[:, None] % 3)
    tensors = FORMATS["gptq_v2"].tensors("m", weight, torch.bfloat16)
    tensors["m.qzeros"] = tensors["m.qzeros"] - 0x11111111
    assert same(weight, FORMATS["gptq"].weight("m", tensors, QuantizationSpec(4, -1, False)))


def test_gptq_reads_groups_in_any_order():
    weight = rounded(matrix(32, 64), Grid(4, 32))
    order = torch.randint(0, 2, (64,), dtype=torch.int32, generator=torch.Generator().manual_seed(2))
    tensors = FORMATS["gptq"].tensors("m", weight, torch.bfloat16)
    tensors["m.g_idx"] = order
    found = FORMATS["gptq"].weight("m", tensors, QuantizationSpec(4, 32))
    expected = (weight.codes.float() - 8) * weight.scales[0].float()[:, order.long()]
    assert torch.equal(found.dequantize(), expected)


SPECS = {
    "plain": QuantizationSpec(4, 128, ignored=("lm_head",)),
    "a channel": QuantizationSpec(8, -1, ignored=("lm_head",)),
    "mixed": QuantizationSpec(
        4,
        64,
        modules={"a.0.up": Grid(3, 64), "a.1.up": Grid(3, 64), "a.1.down": Grid(8, -1)},
        ignored=("a.0.down", "lm_head"),
    ),
    "patterns": QuantizationSpec(4, 64, patterns=((r".*\.1\..*", Grid(8, 32)),), ignored=("lm_head",)),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", SPECS)
def test_descriptions_come_back_from_config(format, name):
    if format in ("awq", "bitsandbytes"):
        with pytest.raises(FormatError, match=f"{format} (needs|stores)"):
            FORMATS[format].config(SPECS[name])
        return
    config = json.loads(json.dumps(FORMATS[format].config(SPECS[name])))
    assert format_of(config) is FORMATS[format]
    assert FORMATS[format].spec(config) == SPECS[name]


def test_awq_describes_one_grid():
    spec = QuantizationSpec(4, 64, False, ignored=("lm_head",))
    config = json.loads(json.dumps(FORMATS["awq"].config(spec)))
    assert format_of(config) is FORMATS["awq"] and FORMATS["awq"].spec(config) == spec
    with pytest.raises(FormatError, match="awq needs one group size for all matrices"):
        FORMATS["awq"].check(replace(spec, modules={"a": Grid(4, 32, False)}))
    tensors = FORMATS["awq"].tensors("m", rounded(matrix(16, 64), Grid(4, 64, False), torch.float16), torch.bfloat16)
    assert {name: (tuple(one.shape), one.dtype) for name, one in tensors.items()} == {
        "m.qweight": ((64, 2), torch.int32),
        "m.qzeros": ((1, 2), torch.int32),
        "m.scales": ((1, 16), torch.float16),
    }
    words = tensors["m.qweight"][5, 1].item() & 0xFFFFFFFF
    codes = rounded(matrix(16, 64), Grid(4, 64, False), torch.float16).codes
    assert [words >> 4 * i & 15 for i in range(8)] == [codes[8 + output, 5] for output in (0, 2, 4, 6, 1, 3, 5, 7)]
    with pytest.raises(FormatError, match="m: 12 outputs do not fill the words of awq"):
        FORMATS["awq"].tensors("m", rounded(matrix(12, 64), Grid(4, 64, False), torch.float16), torch.float16)
    with pytest.raises(FormatError, match="awq needs codes of 4 bits with zero points"):
        FORMATS["awq"].tensors("m", rounded(matrix(16, 64), Grid(4, 64), torch.float16), torch.float16)


def test_vllm_finds_the_bits_of_what_it_fuses():
    layers = {f"l.{n}.self_attn.{leaf}_proj": Grid(8, 64) for n in (0, 1) for leaf in "qkv"[: 3 - n]}
    rules = FORMATS["gptq"].config(QuantizationSpec(4, 64, modules=layers))["dynamic"]
    assert r"+:^l\.0\.self_attn\.qkv_proj$" in rules
    assert r"+:^l\.1\.self_attn\.qkv_proj$" not in rules
    rules = FORMATS["gptq"].config(QuantizationSpec(4, 64, ignored=("a.gate_proj", "a.up_proj", "b.up_proj")))[
        "dynamic"
    ]
    assert list(rules) == [
        *(r"-:^a\.gate_proj$", r"-:^a\.gate_up_proj$", r"-:^a\.up_proj$", r"-:^b\.up_proj$"),
    ]


@pytest.mark.parametrize("format", sorted(FORMATS.keys() - {"bitsandbytes"}))
def test_folders_are_read_back(tmp_path, format):
    dtype = torch.float16 if format == "awq" else torch.float32
    model = tiny_model(tmp_path / "model", dtype, tied=False)
    spec = QuantizationSpec(4, 32, modules={"model.layers.1.mlp.up_proj": Grid(8, -1)}, ignored=("lm_head",))
    if format == "awq":
        spec = QuantizationSpec(4, 32, False, ignored=("lm_head",))
    weights = write(model, tmp_path / "quantised", format, replace(spec, dtype=dtype))
    found = read(tmp_path / "quantised")
    assert found.spec.of("model.layers.1.mlp.up_proj") == spec.of("model.layers.1.mlp.up_proj")
    assert list(found.modules) == sorted(weights)
    assert all(same(weights[name], weight) for name, weight in found.weights())
    dense = dict(found.dense())
    assert found.spec.dtype == dtype
    assert torch.equal(
        dense["model.layers.0.mlp.up_proj.weight"], weights["model.layers.0.mlp.up_proj"].dequantize(dtype)
    )
    assert {"lm_head.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.bias"} <= set(
        found.unquantised_names
    )
    original = read_names(model)
    assert set(dense) == original


def read_names(folder):
    from squeeze.checkpoint import safetensors as tensorfile

    return {name for path in folder.glob("*.safetensors") for name in tensorfile.read(path).by_name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("m.scales"), "tensor m.scales is missing"),
        (lambda t: t.update({"m.codes": t["m.codes"].long()}), "tensor m.codes: expected torch.int32, got torch.int64"),
        (
            lambda t: t.update({"m.codes": t["m.codes"][:, :-1]}),
            r"tensor m.codes: expected shape \[8, 8\], got \[8, 7\]",
        ),
        (lambda t: t.update({"m.scales": t["m.scales"][:, :, :1]}), "m: 1 groups of 32 do not make 64 inputs"),
        (lambda t: t.update({"m.scales": t["m.scales"][0]}), "m: expected a matrix"),
        (lambda t: t.update({"m.grid": torch.tensor([8, 64, 9, 32])}), "9 bits: choose from 2, 3, 4, 5, 6, 7, 8"),
        (lambda t: t.update({"m.grid": torch.tensor([8, 64, 4])}), "m: expected a matrix"),
        (lambda t: t.pop("m.zeros"), "m: the weight has no zero points"),
        (lambda t: t.update({"m.outlier_inputs": t["m.outlier_inputs"] + 64}), "outlier column is outside"),
    ],
)
def test_contradictions_are_named(change, message):
    grid = Grid(4, 32, False, outliers=True)
    tensors = FORMATS["squeeze"].tensors("m", rounded(matrix(8, 64), grid), torch.bfloat16)
    change(tensors)
    with pytest.raises(FormatError, match=message):
        FORMATS["squeeze"].weight("m", tensors, spec_of(grid))


def test_what_a_format_cannot_hold_is_said():
    ragged = rounded(matrix(32, 48), Grid(4, 32))
    for format in ("gptq", "compressed-tensors"):
        with pytest.raises(FormatError, match="48 inputs are not whole groups of 32"):
            FORMATS[format].tensors("m", ragged, torch.bfloat16)
    with pytest.raises(FormatError, match="5 x 64 codes of 4 bits do not fill the words"):
        FORMATS["gptq"].tensors("m", rounded(matrix(5, 64), Grid(4, 32)), torch.bfloat16)
    with pytest.raises(FormatError, match=r"the scales .* cannot be stored as torch.float16"):
        FORMATS["gptq"].tensors("m", rounded(matrix(32, 64) * 1e-6, Grid(4, 32)), torch.float16)
    with pytest.raises(FormatError, match=r"symmetric grids.*gptq_v2"):
        FORMATS["gptq"].check(QuantizationSpec(4, 128, False))
    for format in ("gptq", "gptq_v2"):
        for spec in (QuantizationSpec(6), QuantizationSpec(4, modules={"a": Grid(6)})):
            with pytest.raises(
                FormatError, match=f"^the format {format} stores 2, 3, 4 or 8 bits, got 6: use the format sq"
            ):
                FORMATS[format].check(spec)
    with pytest.raises(FormatError, match=r"^the format awq needs 4 bits$"):
        FORMATS["awq"].check(QuantizationSpec(6, 32, False))
    weight = rounded(matrix(32, 64).abs(), Grid(4, 32, False))
    with pytest.raises(FormatError, match="a zero point of 0"):
        FORMATS["gptq"].tensors("m", weight, torch.bfloat16)


def test_names_come_before_what_all_layers_have():
    """Else the package warns of each name that nothing was left for it to match."""
    spec = QuantizationSpec.of_grid(Grid(4, 64, True), modules={"a": Grid(8, 64, True)})
    groups = FORMATS["compressed-tensors"].config(spec)["config_groups"]
    assert [group["targets"] for group in groups.values()] == [["a"], ["Linear"]]
