"""`squeeze prune` and squeeze.prune: tiny models of several architectures, end to end, and how they are stored."""

import json
from functools import cache

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import mask_of
from squeeze.cli import main
from squeeze.engine.forward import input_squares
from squeeze.errors import DamagedError, FormatError, LimitError, ModelError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.prune.permute import PermutedCheckpoint, order_of
from squeeze.prune.scores import Magnitude, Wanda
from squeeze.prune.slim import SLiM
from squeeze.prune.sparse24 import SparseFormat
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.prune.stored import Sparse24Linear
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.densify import densify
from tests.makers import tiny_models
from tests.makers.cases import all_slow_but
from tests.makers.layers import problem

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (6, 32), generator=torch.Generator().manual_seed(1))


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(TOKENS).logits


@pytest.mark.parametrize("kind", all_slow_but(["llama", "gpt2"], ("llama", "qwen2", "gpt2", "qwen2_moe")))
def test_every_architecture_is_pruned_and_stored_sparse(tmp_path, folders, kind):
    for name, dense in (("dense", True), ("sparse", False)):
        report = squeeze.prune(folders(kind), SparseGPT(), calibration=TOKENS, out=tmp_path / name, dense=dense)
    assert {layer.pattern for layer in report.layers} == {"2:4"}
    assert all(layer.sparsity >= 0.5 for layer in report.layers)
    assert len(report.layers) == {"gpt2": 8, "qwen2_moe": 2 * (4 + 4 * 3)}.get(kind, 14)
    assert "every group checked to hold to 2:4" in report.table()
    wanted, found = logits(tmp_path / "dense"), logits(tmp_path / "sparse")
    assert torch.equal(wanted, found)
    assert not torch.equal(wanted, logits(folders(kind)))
    densify(tmp_path / "sparse", tmp_path / "expanded")
    dense, expanded = (load_file(tmp_path / name / "model.safetensors") for name in ("dense", "expanded"))
    assert dense.keys() == expanded.keys() and all(torch.equal(dense[name], expanded[name]) for name in dense)
    layers = [module for module in load_model(tmp_path / "sparse").modules() if isinstance(module, Sparse24Linear)]
    assert len(layers) == {"qwen2_moe": 2 * 4}.get(kind, len(report.layers))  # its experts are merged


@pytest.mark.parametrize(
    "method", [Wanda(), Magnitude(pattern=Pattern.parse("50%")), SLiM(rank=0.1)], ids=lambda m: m.name
)
def test_methods_end_to_end(tmp_path, folders, method):
    report = squeeze.prune(folders("llama"), method, calibration=TOKENS, out=tmp_path / "out")
    assert {layer.method for layer in report.layers} == {method.name}
    assert torch.isfinite(logits(tmp_path / "out")).all()
    assert json.loads((tmp_path / "out" / "compression_report.json").read_text())["sparsity"] > 0.49


@cache
def weights():
    weight, hessian = problem(32, 128)
    grid = GPTQ(bits=4, group_size=32, symmetric=False)
    return [
        SparseGPT().apply(weight.bfloat16(), hessian),
        Wanda(pattern=Pattern.parse("60%")).apply(weight, hessian),
        SparseGPT(quantizer=grid).apply(weight.bfloat16(), hessian),
        SparseGPT(quantizer=GPTQ(bits=3, group_size=-1)).apply(weight[:, :50], hessian[:50, :50]),
        SLiM(base=SparseGPT(quantizer=grid)).apply(weight.bfloat16(), hessian),
        SLiM(adapter=None).apply(weight.bfloat16(), hessian),
    ]


@pytest.mark.parametrize("number", range(6))
def test_what_is_stored_is_the_weight(number):
    weight = weights()[number]
    stored = SparseFormat().tensors("a.b", weight)
    found = SparseFormat().weight("a.b", stored)
    assert torch.equal(found.mask, weight.mask) and found.pattern == weight.pattern
    assert torch.equal(found.dequantize(), weight.dequantize())
    assert torch.equal(found.sparse(), weight.sparse())
    x = torch.randn(3, weight.shape[1])
    torch.testing.assert_close(Sparse24Linear.of(weight)(x), x @ weight.dequantize().T)


def test_stored_bits_a_weight_are_below_their_bounds():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((512, 512), generator=generator).bfloat16()
    plain = SparseFormat().tensors("", Magnitude().apply(weight))
    assert 8 * sum(tensor.nbytes for tensor in plain.values()) / weight.numel() < 6.2
    both = SparseGPT(quantizer=GPTQ(bits=4, group_size=128), refine=1, reconstruct=0).apply(weight, torch.eye(512))
    assert 8 * sum(tensor.nbytes for tensor in SparseFormat().tensors("", both).values()) / weight.numel() < 2.85


def test_damaged_and_foreign_weights_are_named():
    stored = SparseFormat().tensors("a", weights()[0])
    cases = {
        "a.sparse_grid is missing": {"a.sparse_grid": None},
        "expected a sparse matrix": {"a.sparse_grid": torch.zeros(9, dtype=torch.int64)},
        "expected torch.uint8, got torch.int32": {"a.sparse_mask": stored["a.sparse_mask"].int()},
    }
    for message, change in cases.items():
        tensors = {name: tensor for name, tensor in {**stored, **change}.items() if tensor is not None}
        with pytest.raises(FormatError, match=message):
            SparseFormat().weight("a", tensors)
    for leaf in ("sparse_mask", "sparse_values"):
        with pytest.raises(DamagedError):
            SparseFormat().weight("a", {**stored, f"a.{leaf}": stored[f"a.{leaf}"][:-8]})
    huge = stored["a.sparse_grid"].clone()
    huge[:2] = 1 << 20
    with pytest.raises(LimitError, match=r"^a: its sparse weight needs [0-9,]+ bytes of memory"):
        SparseFormat().weight("a", {**stored, "a.sparse_grid": huge})
    outputs, inputs = stored["a.sparse_grid"][:2].tolist()
    sides = {"a.left_weight": torch.ones(1, outputs), "a.right_weight": torch.ones(1, 2 * inputs)}
    with pytest.raises(FormatError, match=f"expected adapters of a matrix of {outputs} x {inputs}$"):
        SparseFormat().weight("a", {**stored, **sides})
    with pytest.raises(FormatError, match="use a newer squeeze"):
        SparseFormat().check({"version": 99})


def test_pack_takes_a_dense_folder_back_to_what_is_kept(tmp_path, folders):
    import squeeze.integrations.transformers

    squeeze.prune(folders("llama"), Magnitude(), out=tmp_path / "dense", dense=True)
    totals = squeeze.pack(tmp_path / "dense", tmp_path / "packed")
    before = squeeze.pack(folders("llama"), tmp_path / "original")
    assert totals.coded < 0.95 * before.coded
    assert torch.equal(logits(tmp_path / "packed"), logits(tmp_path / "dense"))


def test_permutation_keeps_the_function(tmp_path, folders):
    for kind in ("llama", "qwen2"):
        source = Checkpoint.open(folders(kind))
        squares = input_squares(source, TOKENS)
        assert len(squares) == 14
        permuted = PermutedCheckpoint.of(source, squares, Pattern())
        assert sorted(permuted.stream.tolist()) == list(range(64)) != permuted.stream.tolist()
        copy = tmp_path / kind
        copy.mkdir()
        save_file(permuted.load(permuted.files), copy / "model.safetensors")
        (copy / "config.json").write_text((folders(kind) / "config.json").read_text())
        torch.testing.assert_close(logits(copy), logits(folders(kind)), rtol=1e-3, atol=1e-3)
    with pytest.raises(ModelError, match="channels of 'gpt2' cannot be reordered"):
        squeeze.prune(folders("gpt2"), SparseGPT(), calibration=TOKENS, out=tmp_path / "x", permute=True)
    report = squeeze.prune(folders("llama"), SparseGPT(), calibration=TOKENS, out=tmp_path / "out", permute=True)
    assert report.settings["permute"] is True


@pytest.mark.parametrize("pattern", ["2:4", "1:4", "4:8"])
def test_an_order_keeps_more(pattern):
    chosen = Pattern.parse(pattern)
    generator = torch.Generator().manual_seed(3)
    scores = torch.rand((40, 64), generator=generator) * torch.rand(64, generator=generator).sort().values ** 3

    def kept(values):
        return float((values * mask_of(chosen, values)).sum())

    order = order_of(scores, chosen)
    assert sorted(order.tolist()) == list(range(64))
    assert kept(scores[:, order]) > 1.02 * kept(scores)
    assert torch.equal(order_of(scores[:, :62], Pattern()), torch.arange(62))


@pytest.fixture(scope="module")
def with_tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    return tiny_models.write_folder(folder, tiny_models.byte_level(), vocab_size=400)


def test_the_command_permutes_measures_and_recovers(tmp_path, with_tokenizer):
    text = tmp_path / "text.txt"
    text.write_text(tiny_models.TRAINING_TEXT.decode()[:6000])
    out = tmp_path / "out"
    command = ["prune", str(with_tokenizer), str(out), "--calibration", str(text), "--samples", "4", "-T", "1"]
    command += ["--sequence-length", "48", "--text", str(text), "--windows", "1", "--permute", "--json"]
    done = CliRunner().invoke(main, [*command, "--recover", "0.001"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["settings"]["recovery"].endswith(" steps")
    assert found["after"]["kl_mean"] > 0 and found["sparsity"] >= 0.5
    assert found["bits_per_weight"] < 20  # of 32, and these matrices are small
    done = CliRunner().invoke(
        main, [*command, "-f", "--bits", "4", "--slim", "--rank", "0.05", "--max-kl", "1e-9", "-q"]
    )
    assert done.exit_code == 3 and "the mean KL divergence is" in done.stderr
    for options, message in (
        (["--pattern", "half"], "pattern 'half': name N:M such as 2:4"),
        (["--method", "wanda", "--bits", "4"], "wanda neither quantises nor has adapters"),
        (["--slim", "--rank", "0"], "expected a rank above 0"),
    ):
        done = CliRunner().invoke(main, ["prune", str(with_tokenizer), str(tmp_path / "x"), "-q", *options])
        assert done.exit_code == 1 and done.output.startswith("Error: ") and message in done.output
        assert not (tmp_path / "x").exists()


def test_a_run_that_was_stopped_goes_on(tmp_path, folders, monkeypatch):
    from squeeze.engine import pipeline

    def run(name, resume=False):
        squeeze.prune(folders("llama"), SparseGPT(), calibration=TOKENS, out=tmp_path / name, resume=resume)
        return load_file(tmp_path / name / "model.safetensors")

    wanted = run("whole")
    compress = pipeline.calibrated_block

    def stopped(job, name, *args):
        if name.endswith("1"):
            raise KeyboardInterrupt
        return compress(job, name, *args)

    monkeypatch.setattr(pipeline, "calibrated_block", stopped)
    with pytest.raises(KeyboardInterrupt):
        run("again")
    monkeypatch.setattr(pipeline, "calibrated_block", compress)
    found = run("again")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_refuses_an_unknown_method_and_a_missing_folder(tmp_path, folders):
    with pytest.raises(SqueezeError, match="method 'x' is unknown"):
        squeeze.prune(folders("llama"), "x", out=tmp_path / "out")
    with pytest.raises(FormatError, match="no such folder"):
        squeeze.prune(tmp_path / "nowhere", Magnitude(), out=tmp_path / "out")
