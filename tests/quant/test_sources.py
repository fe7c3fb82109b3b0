"""Quantised checkpoints as sources: every tensor read as the tool that wrote it reads it."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.network import Network
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.quant.formats import read
from squeeze.quant.sources import READERS, floats
from tests.makers import mixtures, networks
from tests.makers.mixtures import IDS

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

UP = "model.layers.0.mlp.up_proj"
RANDOM = torch.Generator().manual_seed(5)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = networks.save("llama", tmp_path_factory.mktemp("models") / "shards")
    model = load_model(folder, torch.bfloat16)
    model.save_pretrained(folder.parent / "model")
    return folder.parent / "model"


def rewritten(source, target, described, change):
    """A copy whose linear weights in blocks are replaced: change(name, weight) by the tensors that stand for it."""
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        linear = tensor.ndim >= 2 and ".layers." in name and not name.endswith("gate.weight")
        tensors |= change(name, tensor) if linear else {name: tensor}
    target.mkdir()
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": described}))
    return target


def fp8(block, suffix="_scale_inv"):
    def change(name, tensor):
        grid = [-(-size // n) for size, n in zip(tensor.shape, block, strict=True)]
        scales = torch.rand(grid, generator=RANDOM) + 0.5
        return {name: (tensor.float() * 8).to(torch.float8_e4m3fn), name + suffix: scales}

    return change


def by_definition(weight, scales, block):
    out = weight.float().clone()
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] *= scales[i // block[0], j // block[1]]
    return out.bfloat16()


@pytest.mark.parametrize("block", [(128, 128), (32, 48), (7, 5)])
def test_fp8_in_blocks_is_read_as_floats(tmp_path, llama, block):
    described = {"quant_method": "fp8", "weight_block_size": list(block), "activation_scheme": "dynamic"}
    folder = rewritten(llama, tmp_path / "fp8", described, fp8(block))
    stored, found = load_file(folder / "model.safetensors"), floats(Checkpoint.open(folder))
    name = f"{UP}.weight"
    wanted = by_definition(stored[name], stored[f"{name}_scale_inv"], block)
    assert torch.equal(found.load([name])[name], wanted)
    assert set(found.files) == set(load_file(llama / "model.safetensors"))
    assert "quantization_config" not in found.config and found.float_type() == torch.bfloat16


def of_compressed_tensors(form, weights, leaves):
    """(described, change, reference): by the package's own compressor."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights), format=form)
    codec = BaseCompressor.get_value_from_registry(form)
    group = {"targets": ["Linear"], "weights": weights, "format": form}
    described = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}

    def change(name, tensor):
        module = name.removesuffix(".weight")
        coded = codec.compress({"weight": tensor, **leaves(tensor)}, scheme)
        return {f"{module}.{leaf}": value.data.contiguous() for leaf, value in coded.items()}

    def reference(tensors):
        return codec.decompress(dict(tensors), scheme)["weight"].float()

    return described, change, reference


def groups(size, dtype=torch.bfloat16):
    def leaves(tensor):
        grouped = tensor.float().reshape(len(tensor), -1, size)
        return {"weight_scale": (grouped.abs().amax(-1) / 6).clamp(min=1e-4).to(dtype)}

    return leaves


def nvfp4(tensor):
    factor = torch.tensor([400.0])
    scales = groups(16)(tensor)["weight_scale"].float() * factor
    return {"weight_scale": scales.to(torch.float8_e4m3fn).bfloat16(), "weight_global_scale": factor}


def rows(tensor):
    return {"weight_scale": tensor.float().abs().amax(-1, keepdim=True) / 100}


SCHEMES = {
    "int-quantized": ({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}, rows),
    "float-quantized": ({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}, rows),
    "nvfp4-pack-quantized": (
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "symmetric": True, "group_size": 16},
        nvfp4,
    ),
    "mxfp4-pack-quantized": (
        {"num_bits": 4, "type": "float", "strategy": "group", "symmetric": True, "group_size": 32},
        groups(32),
    ),
}


@pytest.mark.parametrize("form", SCHEMES)
def test_schemes_of_compressed_tensors(tmp_path, llama, form):
    described, change, reference = of_compressed_tensors(form, *SCHEMES[form])
    folder = rewritten(llama, tmp_path / "coded", described, change)
    stored, found = load_file(folder / "model.safetensors"), floats(Checkpoint.open(folder))
    leaves = {name.removeprefix(f"{UP}."): value for name, value in stored.items() if name.startswith(f"{UP}.")}
    weight = found.load([f"{UP}.weight"])[f"{UP}.weight"].float()
    torch.testing.assert_close(weight, reference(leaves), rtol=0.01, atol=1e-3)
    original = load_file(llama / "model.safetensors")[f"{UP}.weight"].float()
    assert (weight - original).norm() < 0.35 * original.norm()  # the package rounds powers of two down
    Network(found)


@pytest.mark.parametrize(
    "kind, format",
    [*(("llama", format) for format in ("gptq", "gptq_v2", "compressed-tensors", "squeeze")), ("gpt2", "squeeze")],
)
def test_formats_that_squeeze_writes(tmp_path, folders, kind, format):
    squeeze.quantize(folders(kind), "rtn", bits=4, group_size=32, out=tmp_path / "w4", format=format)
    found = floats(Checkpoint.open(tmp_path / "w4"))
    for name, weight in read(tmp_path / "w4").weights():
        values = found.load([f"{name}.weight"])[f"{name}.weight"]
        assert torch.equal(values.T if kind == "gpt2" else values, weight.dequantize(torch.bfloat16))
    assert {name: found.info(name).shape for name in found.files} == shapes(folders(kind))


def shapes(folder):
    checkpoint = Checkpoint.open(folder)
    return {name: checkpoint.info(name).shape for name in checkpoint.files}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}


def awq(name, tensor):
    module, (outputs, inputs) = name.removesuffix(".weight"), tensor.shape
    codes = torch.randint(0, 16, (inputs, outputs), generator=RANDOM)
    zeros = torch.randint(0, 16, (inputs // 32, outputs), generator=RANDOM)
    return {
        f"{module}.qweight": packed(codes),
        f"{module}.qzeros": packed(zeros),
        f"{module}.scales": torch.rand((inputs // 32, outputs), generator=RANDOM).half() / 50,
    }


def packed(values):
    """AutoAWQ's words: output 8 w + (0 2 4 6 1 3 5 7)[i] in bits 4 i of word w."""
    words = torch.zeros((len(values), values.shape[1] // 8), dtype=torch.int64)
    for i, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        words |= values[:, output::8] << 4 * i
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def test_awq_folders_are_read_as_floats(tmp_path, llama):
    folder = rewritten(llama, tmp_path / "awq", AWQ, awq)
    found = floats(Checkpoint.open(folder)).load([f"{UP}.weight"])[f"{UP}.weight"]
    stored, order = load_file(folder / "model.safetensors"), (0, 2, 4, 6, 1, 3, 5, 7)
    for o, i in ((0, 0), (3, 40), (13, 63), (94, 31)):
        place = 4 * order.index(o % 8)
        code, zero = (int(stored[f"{UP}.{leaf}"][row, o // 8]) >> place & 15 for leaf, row in
                      (("qweight", i), ("qzeros", i // 32)))  # fmt: skip
        assert found[o, i] == ((code - zero) * stored[f"{UP}.scales"][i // 32, o].float()).bfloat16()
    with torch.no_grad():
        logits = load_model(folder)(IDS).logits
    squeeze.densify(folder, tmp_path / "dense")
    with torch.no_grad():
        dense = load_model(tmp_path / "dense")(IDS).logits
    assert (logits - dense).norm() < 0.02 * dense.norm()  # whose weights are in bfloat16


def as_mxfp4(name, tensor):
    if ".experts." not in name or "bias" in name:
        return {name: tensor}
    experts, inputs, outputs = tensor.shape
    codes = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=RANDOM)
    scales = torch.randint(118, 122, (experts, outputs, inputs // 32), dtype=torch.uint8, generator=RANDOM)
    return {f"{name}_blocks": codes, f"{name}_scales": scales}


def test_mxfp4_expert_by_expert(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    source = mixtures.save("gpt_oss", tmp_path / "model")
    folder = rewritten(source, tmp_path / "mxfp4", {"quant_method": "mxfp4"}, as_mxfp4)
    found, stored = floats(Checkpoint.open(folder)), load_file(folder / "model.safetensors")
    assert {name: found.info(name).shape for name in found.files} == shapes(source)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    wanted = convert_moe_packed_tensors(stored[f"{name}_blocks"], stored[f"{name}_scales"])
    assert torch.equal(found.load([name])[name], wanted)
    assert torch.equal(found.entry(name, 4), wanted[4])
    report = squeeze.quantize(folder, "rtn", bits=8, group_size=32, out=tmp_path / "out", format="squeeze")
    assert len([layer for layer in report.layers if ".experts." in layer.name]) == 36
    assert report.parameters == sum(torch.Size(shape).numel() for shape in shapes(source).values())
    with torch.no_grad():
        logits = [load_model(one, torch.float32)(IDS).logits for one in (folder, tmp_path / "out")]
    assert (logits[0] - logits[1]).norm() < 0.05 * logits[0].norm()


@pytest.mark.parametrize("recipe", ["quantize", "prune", "factorize"])
def test_recipes_take_what_floats_would_give(tmp_path, recipe):
    """The same bytes as from a checkpoint of the floats."""
    source = mixtures.save("deepseek_v3", tmp_path / "model")
    described = {"quant_method": "fp8", "weight_block_size": [128, 128]}

    def change(name, tensor):
        return fp8((128, 128))(name, tensor) if tensor.ndim == 2 else {name: tensor}

    folder = rewritten(source, tmp_path / "fp8", described, change)
    squeeze.densify(folder, tmp_path / "dense")
    options = {"quantize": ("rtn", {"group_size": 32}), "prune": ("magnitude", {}), "factorize": ("svd", {})}
    method, more = options[recipe]
    for one in ("fp8", "dense"):
        getattr(squeeze, recipe)(tmp_path / one, method, out=tmp_path / f"{one}.out", **more)
    stored = [load_file(tmp_path / f"{one}.out" / "model.safetensors") for one in ("fp8", "dense")]
    assert stored[0].keys() == stored[1].keys()
    assert all(torch.equal(stored[0][name], stored[1][name]) for name in stored[0])


def test_a_rotation_turns_what_is_quantised(tmp_path, llama):
    folder = rewritten(llama, tmp_path / "fp8", {"quant_method": "fp8"}, fp8((128, 128)))
    squeeze.densify(folder, tmp_path / "dense")
    for one in ("fp8", "dense"):
        squeeze.quantize(tmp_path / one, "rtn", rotate=True, out=tmp_path / f"{one}.out", format="dense")
    stored = [load_file(tmp_path / f"{one}.out" / "model.safetensors") for one in ("fp8", "dense")]
    assert all(torch.equal(stored[0][name], stored[1][name]) for name in stored[1])


def damaged(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def without(name):
    return lambda tensors: tensors.pop(name)


def shorter(name):
    return lambda tensors: tensors.update({name: tensors[name][:-1].contiguous()})


def int8(name, tensor):
    scales = tensor.float().abs().amax(-1, keepdim=True) / 100
    return {name: (tensor / scales).to(torch.int8), f"{name}_scale": scales.bfloat16()}


ROWS = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}}
SCALES = f"{UP}.weight_scale_inv"
FAULTS = {
    "scales missing": ({}, fp8((32, 32)), without(SCALES), f"tensor '{SCALES}' is missing"),
    "scales too few": (
        {},
        fp8((32, 32)),
        shorter(SCALES),
        r"a grid of \[2, 2\] scales does not make blocks of 32 x 32",
    ),
    "groups": (
        {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"g": ROWS}},
        int8,
        shorter(f"{UP}.weight_scale"),
        r"\[95, 1\] scales do not make groups of \[96, 64\]: \[96, 1\] do",
    ),
    "no groups": (
        {"quant_method": "compressed-tensors", "format": "int-quantized"},
        int8,
        None,
        "the quantization_config of compressed-tensors does not say how its weights are stored",
    ),
    "AWQ groups": (AWQ, awq, shorter(f"{UP}.scales"), "1 groups do not make 64 inputs x 96"),
    "AWQ shapes": (AWQ, awq, lambda tensors: tensors.update({f"{UP}.qzeros": torch.zeros(3)}), "expected matrices of"),
    "AWQ ranks": (AWQ, awq, lambda tensors: tensors.update({f"{UP}.scales": torch.zeros(3)}), "expected matrices of"),
    "AWQ bits": ({**AWQ, "bits": 3}, awq, None, "got 3 bits in version 'gemm'"),
    "no method": ({"quant_method": "nonesuch"}, fp8((32, 32)), None, "unsupported quant_method 'nonesuch'"),
    "not quantised": ({"quant_method": "awq"}, fp8((32, 32)), None, "names awq, but no tensor is stored so"),
    "blocks": ({"weight_block_size": 5}, fp8((32, 32)), None, "expected rows and columns of a block, got 5"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_end_in_one_line(tmp_path, llama, fault):
    described, change, damage, message = FAULTS[fault]
    described = {"quant_method": "fp8", "weight_block_size": [32, 32], **described}
    folder = rewritten(llama, tmp_path / "model", described, change)
    if damage:
        damaged(folder, damage)
    with pytest.raises(SqueezeError) as caught:
        squeeze.quantize(folder, "rtn", out=tmp_path / "out")
    assert re.search(message, str(caught.value)) and "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_every_reader_is_tested():
    assert set(READERS) == {"fp8", "mxfp4", "gptq", "awq", "bitsandbytes", "compressed-tensors", "squeeze-quantized"}
