"""`squeeze quantize` and squeeze.quantize: tiny models of several architectures, end to end."""

import itertools
import json
import math

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.cli import main
from squeeze.engine import pipeline
from squeeze.errors import FormatError, ModelError, QualityError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.options import load
from squeeze.quant.gptq import GPTQ
from squeeze.quant.rtn import RTN
from squeeze.system.work import work_folder
from tests.makers import networks
from tests.makers.cases import all_slow_but

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (6, 32), generator=torch.Generator().manual_seed(1))


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(TOKENS).logits


@pytest.mark.parametrize("kind", networks.KINDS)
def test_every_architecture_is_quantised_in_its_own_names(tmp_path, folders, kind):
    report = squeeze.quantize(
        folders(kind), GPTQ(bits=8, group_size=32), calibration=TOKENS, out=tmp_path / "out", format="dense"
    )
    names = [layer.name for layer in report.layers]
    stored = [tensor for path in folders(kind).glob("*.safetensors") for tensor in load_file(path)]
    assert {f"{name}.weight" for name in names} <= set(stored)
    expected = {"gpt2": 8, "qwen2_moe": 2 * (4 + 4 * 3), "mixtral": 2 * (4 + 4 * 3)}.get(kind, 14)
    assert len(names) == len(set(names)) == expected
    assert report.left["lm_head"] == "outside the blocks"
    wanted, found = logits(folders(kind)), logits(tmp_path / "out")
    assert not torch.equal(wanted, found)
    assert ((wanted - found).norm(dim=-1) / wanted.norm(dim=-1)).median() < 0.02  # where routing is the same
    assert sorted(load_model(tmp_path / "out").state_dict()) == sorted(load_model(folders(kind)).state_dict())


@pytest.mark.parametrize(
    ("format", "kind"),
    all_slow_but(
        [("gptq", "llama"), ("gptq_v2", "qwen2_moe"), ("compressed-tensors", "llama")],
        itertools.product(["gptq", "gptq_v2", "compressed-tensors"], ["llama", "qwen2_moe"]),
    ),
)
def test_others_formats_are_measured_without_their_packages(tmp_path, folders, monkeypatch, kind, format):
    monkeypatch.setattr("squeeze.integrations.load_model.find_spec", lambda name: None)
    squeeze.quantize(folders(kind), RTN(bits=8, group_size=-1), out=tmp_path / "out", format=format)
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    wanted, found = logits(tmp_path / "dense"), logits(tmp_path / "out")
    assert ((wanted - found).norm(dim=-1) / wanted.norm(dim=-1)).median() < 0.02  # dense weights are in bf16


def test_experts_without_tokens_fall_back_and_say_so(tmp_path, folders):
    report = squeeze.quantize(
        folders("qwen2_moe"), GPTQ(bits=4), calibration=TOKENS[:1, :3], out=tmp_path / "out", format="dense"
    )
    notes = "\n".join(report.fallbacks)
    assert "no calibration token reached it: rtn instead" in notes
    assert "calibration tokens reached its 64 inputs: rtn instead" in notes
    assert all(layer.method == "rtn" for layer in report.layers)


def test_blocks_see_what_the_blocks_before_became(tmp_path, folders):
    """Compare the statistics of the last matrix with those of the compressed network's own inputs."""
    seen = {}
    compress = GPTQ.compress

    def spy(self, weight, hessian=None):
        seen[len(seen)] = hessian
        return compress(self, weight, hessian)

    patch = pytest.MonkeyPatch()
    patch.setattr(GPTQ, "compress", spy)
    squeeze.quantize(
        folders("llama"), GPTQ(bits=3), calibration=TOKENS, out=tmp_path / "out", format="dense", correction=0.0
    )
    patch.undo()
    inputs = []
    model = load_model(tmp_path / "out")
    hook = model.model.layers[1].mlp.down_proj.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        model(TOKENS)
    hook.remove()
    x = inputs[0].reshape(-1, 96)
    torch.testing.assert_close(seen[13], x.T @ x / len(x), rtol=1e-3, atol=1e-3 * float(seen[13].abs().max()))


@pytest.fixture(scope="module")
def by_gptq(folders):
    """Write a folder in a format, with the report."""

    def write(out, format):
        method = GPTQ(bits=4, group_size=32)
        return squeeze.quantize(folders("llama"), method, calibration=TOKENS, out=out, format=format)

    return write


@pytest.fixture(scope="module")
def dense_values(by_gptq, tmp_path_factory):
    out = tmp_path_factory.mktemp("dense") / "out"
    by_gptq(out, "dense")
    return load_model(out).state_dict()


@pytest.mark.parametrize("format", ["gptq", "compressed-tensors", "squeeze", "dense"])
def test_formats_hold_the_same_weights(tmp_path, by_gptq, dense_values, format):
    from squeeze.quant.formats import read

    report, wanted = by_gptq(tmp_path / "out", format), dense_values
    assert (tmp_path / "out" / "compression_report.json").is_file()
    assert "## Compression" in (tmp_path / "out" / "README.md").read_text()
    if format == "dense":
        return
    assert report.stored_bytes < 0.75 * report.raw_bytes
    for name, weight in read(tmp_path / "out").weights():
        assert torch.equal(weight.dequantize(torch.bfloat16).float(), wanted[f"{name}.weight"])
    squeeze.densify(tmp_path / "out", tmp_path / "again")
    assert "quantization_config" not in json.loads((tmp_path / "again" / "config.json").read_text())
    found = load_model(tmp_path / "again").state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("kind", ["gpt2", "qwen2_moe"])
def test_our_own_format_computes_what_dense_weights_do(tmp_path, folders, kind):
    model = load_model(folders(kind), torch.bfloat16)
    for format in ("squeeze", "dense"):
        options = {"out": tmp_path / format, "format": format}
        squeeze.quantize(model if format == "dense" else folders(kind), RTN(bits=4, group_size=32), **options)
    found, wanted = logits(tmp_path / "squeeze"), logits(tmp_path / "dense")
    assert (found - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.parametrize("grid", ["nf4", "nf4-fp8", "mxfp4", "nvfp4", "fp6-e3m2", "ternary", "ternary-planes"])
def test_every_grid_is_stored(tmp_path, folders, grid):
    from squeeze.quant.formats import read

    report = squeeze.quantize(folders("llama"), RTN(grid=grid, group_size=32), out=tmp_path / "out", format="squeeze")
    assert len(dict(read(tmp_path / "out").weights())) == 14
    assert report.bits_per_weight < 6.6


@pytest.mark.parametrize("format", ["squeeze", "gptq", "compressed-tensors"])
def test_one_scale_for_a_matrix_is_stored_in_every_format(tmp_path, folders, format):
    from squeeze.quant.formats import read

    report = squeeze.quantize(folders("llama"), RTN(grid="whole"), out=tmp_path / "out", format=format)
    for name, weight in read(tmp_path / "out").weights():
        assert weight.scales.shape[-1] == 1 and len(weight.scales.unique()) == 1, name
    assert report.bits_per_weight < 4.6
    with pytest.raises(SqueezeError, match="the grid `whole` has no zero points"):
        RTN(grid="whole", symmetric=False)


def test_same_seed_same_files_and_resumed_runs_too(tmp_path, folders, monkeypatch):
    """Check that a run which is stopped at any block ends in the same bytes."""

    def run(name, resume=False):
        squeeze.quantize(
            folders("llama"), GPTQ(bits=4), calibration=TOKENS, out=tmp_path / name, format="squeeze", resume=resume
        )
        return {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.safetensors")}

    wanted = run("whole")
    assert run("again") == wanted
    for stop in range(2):
        compress, calls = pipeline.calibrated_block, []

        def stopped(job, name, *args, compress=compress, calls=calls, stop=stop):
            calls.append(name)
            if len(calls) > stop:
                raise KeyboardInterrupt
            return compress(job, name, *args)

        monkeypatch.setattr(pipeline, "calibrated_block", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(f"stopped{stop}")
        monkeypatch.setattr(pipeline, "calibrated_block", compress)
        assert (tmp_path / f".stopped{stop}.compressing").is_dir()
        assert not (tmp_path / f"stopped{stop}").exists()
        with pytest.raises(
            SqueezeError, match=r"had other settings \(.*bits.*\) and left finished work in .*overwrite=True"
        ):
            squeeze.quantize(folders("llama"), GPTQ(bits=3), calibration=TOKENS, out=tmp_path / f"stopped{stop}")
        counts = []
        counting = lambda *args, do=compress, done=counts: (done.append(1), do(*args))[1]  # noqa: E731
        monkeypatch.setattr(pipeline, "calibrated_block", counting)
        assert run(f"stopped{stop}", resume=bool(stop)) == wanted  # with --resume, and by itself
        assert len(counts) == len(calls) + 1 - 2 * stop
        monkeypatch.setattr(pipeline, "calibrated_block", compress)
    with pytest.raises(KeyboardInterrupt), work_folder(tmp_path / "other", "compressing", {}):
        raise KeyboardInterrupt
    with pytest.raises(SqueezeError, match="had other settings"):
        run("other", resume=True)


def test_self_calibration_samples_its_tokens(tmp_path, folders):
    report = squeeze.quantize(
        folders("llama"), GPTQ(bits=4), out=tmp_path / "out", format="dense", samples=3, sequence_length=24
    )
    assert report.settings["calibration"] == "self"
    assert {layer.tokens for layer in report.layers} == {72}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text('{"model_type": "nonesuch"}'), "nonesuch"),
        (lambda f: next(f.glob("*.safetensors")).unlink(), "the shard .* is missing"),
        (lambda f: change(f, lambda t: t.fill_(math.nan)), "has values that are not finite"),
        (lambda f: change(f, lambda t: t.to(torch.int32)), "is of type I32"),
        (lambda f: change(f, lambda t: t[:, :-1].contiguous()), "describes a model of"),
        (lambda f: change(f, lambda t: t.reshape(2, -1)), "expected shape"),
    ],
)
def test_refuses_damaged_checkpoints(tmp_path, folders, damage, message):
    import shutil

    source = tmp_path / "model"
    shutil.copytree(folders("llama"), source)
    damage(source)
    with pytest.raises((FormatError, ModelError), match=message) as caught:
        squeeze.quantize(source, RTN(bits=4), out=tmp_path / "out", format="dense")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def change(folder, how):
    name = "model.layers.1.mlp.up_proj.weight"
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        if name in tensors:
            found = how(tensors[name])
            save_file({**tensors, name: found}, path)


def test_a_full_disk_leaves_nothing_in_the_place_of_the_output(tmp_path, folders, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("squeeze.checkpoint.parts.save_file", full)
    done = CliRunner().invoke(
        main,
        ["quantize", str(folders("llama")), str(tmp_path / "out"), "--method", "rtn", "-q", "--format", "dense"],
    )
    assert done.exit_code == 1
    kept = f"finished work is kept in {tmp_path}/.out.compressing: repeat the command to resume"
    assert done.output.startswith(f"Error: no space is left on the disk; nothing was replaced; {kept}")
    assert done.output.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_tokens_that_the_model_cannot_take(tmp_path, folders):
    for tokens, message in (
        (TOKENS + 290, "expected calibration tokens from 0 to 299, the model's vocabulary"),
        (torch.zeros((1, 65), dtype=torch.int64), "sequences of 65 tokens are longer than the model's 64"),
        (TOKENS[:0], "expected calibration tokens, got none"),
    ):
        with pytest.raises(SqueezeError, match=message):
            squeeze.quantize(folders("gpt2"), GPTQ(), calibration=tokens, out=tmp_path / "out", format="dense")


def test_a_report_fails_a_bound_of_quality():
    from squeeze.engine.report import Quality, Report

    report = Report("in", "out", "rtn", "dense", {}, before=Quality(10.0, 5, 1.0), after=Quality(12.0, 5, 1.0, 0.2))
    report.check(max_ppl_increase=21, max_kl=0.2)
    with pytest.raises(QualityError, match=r"perplexity rose by 20\.0 %, from 10\.00 to 12\.00: the limit is 19 %"):
        report.check(max_ppl_increase=19)
    report.after = Quality(math.inf, 5, 1.0, math.nan)
    with pytest.raises(QualityError):
        report.check(max_kl=1)


def test_every_method_has_its_name():
    from squeeze.quant.method import GridMethod
    from squeeze.quant.methods import METHODS

    methods = {name: load(method) for name, method in METHODS.items()}
    assert {name: method.name for name, method in methods.items()} == dict(zip(methods, methods, strict=True))
    assert set(GridMethod.__subclasses__()) <= set(methods.values())
