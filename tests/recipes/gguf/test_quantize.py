"""GGUF files of small networks: llama.cpp computes what transformers computes with the same numbers."""

import json

import pytest
import tokenizers
import torch
from click.testing import CliRunner

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.cli import main
from squeeze.errors import DamagedError, FormatError, OptionError, SqueezeError
from squeeze.integrations.gguf.export import Export
from squeeze.integrations.gguf.import_ import import_gguf
from squeeze.integrations.load_model import load_model
from squeeze.quant.gptq import GPTQ
from squeeze.quant.rtn import RTN
from squeeze.recipes.gguf import quantize as quantize_gguf
from tests.makers import gguf_models, inputs
from tests.makers.cases import every
from tests.makers.tokenwise import language_alone

pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 390, (4, 40), generator=torch.Generator().manual_seed(1))
TEXT = "def main():\n    return [1, 23, 456]  # it's  é日本\n"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return gguf_models.save("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize(
    ("kind", "type"),
    [
        *(("llama", type) for type in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4")),
        pytest.param("llama", "iq4_nl", marks=pytest.mark.slow),
        *every(2, (("qwen2", type) for type in ("q2_k", "q4_k", "q3_k", "q5_k", "q6_k"))),
        *every(5, (("qwen2", type) for type in ("iq2_xs", "iq2_xxs", "iq2_s", "iq3_s", "iq3_xxs"))),
        *(("mistral", "q3_k"), ("mixtral", "q4_0"), ("gemma", "q5_k")),
        *(pytest.param(kind, "q4_k", marks=pytest.mark.slow) for kind in ("qwen3", "qwen3_moe", "gemma2")),
    ],
)
def test_llama_cpp_reads_each_type_as_we_do(tmp_path, kind, type):
    sizes = {"num_hidden_layers": 1} if kind in ("llama", "qwen2") else {}  # whose blocks are alike
    folder, out = gguf_models.save(kind, tmp_path / "model", **sizes), tmp_path / "out.gguf"
    report = squeeze.quantize(folder, "rtn", out=out, format="gguf", type=type)
    assert not report.fallbacks and report.stored_bytes < 0.6 * report.raw_bytes
    blocks = {name: found for name, found in gguf_models.types_of(out).items() if name.startswith("blk.")}
    assert set(blocks.values()) == {type.upper(), "F32"}
    assert {name for name, found in blocks.items() if found == "F32"} == {
        name for name in blocks if "norm" in name or "bias" in name or "ffn_gate_inp" in name
    }
    gguf_models.check_network(out, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out.gguf"]


def test_gptq_is_better_than_rounding(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 2}
    folder, lost = gguf_models.save("llama", tmp_path / "model", **sizes), {}
    for method in ("rtn", "gptq"):
        out = tmp_path / f"{method}.gguf"
        report = squeeze.quantize(folder, method, out=out, format="gguf", type="q4_0", calibration=TOKENS)
        with torch.no_grad():
            lost[method] = float((load_model(folder)(TOKENS).logits - _logits_of(out, folder)).norm())
        assert report.settings["type"] == "q4_0" and report.target == str(out) and report.format == "gguf"
    assert lost["gptq"] < 0.8 * lost["rtn"]


@pytest.mark.parametrize("kind", every(3, ["llama", "llama3", "linear", "yarn", "mistral", "qwen2", "qwen3"]))
def test_squeeze_reads_what_it_wrote(tmp_path, kind):
    folder, out = gguf_models.save(kind, tmp_path / "model"), tmp_path / "out.gguf"
    squeeze.quantize(folder, "rtn", out=out, format="gguf", type="q8_0")
    import_gguf(out, tmp_path / "back")
    with torch.no_grad():
        wanted, found = _logits_of(out, folder), load_model(tmp_path / "back")(TOKENS).logits
    assert float((found - wanted).norm() / wanted.norm()) < 0.03  # what is imported is in bf16
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "back" / "tokenizer.json"))
    assert library.encode(TEXT).ids == tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids


@pytest.mark.slow
def test_squeeze_compresses_with_what_it_wrote(tmp_path, llama, monkeypatch):
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "cache"))
    squeeze.quantize(llama, "rtn", out=tmp_path / "out.gguf", format="gguf")
    text = inputs.python_text(600)
    with language_alone():  # the weights are random
        file = squeeze.compress(text, 7, model=tmp_path / "out.gguf", threads=1, lanes=1, window=64)
    assert squeeze.decompress(file, model=tmp_path / "out.gguf", threads=1) == text


@pytest.mark.parametrize(("kind", "asked", "bound"), [("q3_k", None, 4.0), ("q3_k", 9.0, 9.0), ("q4_0", None, None)])
def test_types_that_gain_bound_tokens(tmp_path, llama, kind, asked, bound):
    given = {"calibration": TOKENS, **({"bound": asked} if asked else {})}
    report = squeeze.quantize(llama, "gptq", out=tmp_path / "out.gguf", format="gguf", type=kind, **given)
    assert report.settings["bound"] == bound


def test_rows_that_are_no_whole_blocks_get_another_type_and_the_report_says_so(tmp_path):
    sizes = {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 3, "num_key_value_heads": 3}
    folder, out = gguf_models.save("llama", tmp_path / "model", dtype=torch.bfloat16, **sizes), tmp_path / "out.gguf"
    report = squeeze.quantize(folder, "rtn", out=out, format="gguf", type="q4_k", ignore=("o_proj",))
    types = gguf_models.types_of(out)
    assert types["blk.0.attn_q.weight"] == types["blk.1.ffn_up.weight"] == "Q5_0"
    assert types["blk.0.ffn_down.weight"] == "Q4_K" and types["blk.0.attn_output.weight"] == "BF16"
    assert types["token_embd.weight"] == "Q5_0" and types["output.weight"] == "Q8_0"
    assert len(report.fallbacks) == 10
    assert report.fallbacks[0] == (
        "model.layers.0.self_attn.q_proj: q5_0 in place of q4_k, whose blocks of 256 do not fill 96 inputs"
    )
    assert report.left == dict.fromkeys((f"model.layers.{i}.self_attn.o_proj" for i in range(2)), "as asked for")


def test_rows_of_no_blocks_at_all_stay_as_they_are(tmp_path):
    sizes = {"hidden_size": 96, "intermediate_size": 136, "num_attention_heads": 3, "num_key_value_heads": 3}
    folder, out = gguf_models.save("llama", tmp_path / "model", dtype=torch.float16, **sizes), tmp_path / "out.gguf"
    report = squeeze.quantize(folder, "rtn", out=out, format="gguf", type="q4_0")
    assert gguf_models.types_of(out)["blk.0.ffn_down.weight"] == "F16"
    assert report.left["model.layers.0.mlp.down_proj"] == "its rows are not whole blocks of any type"
    gguf_models.check_network(out, folder)


def test_a_stopped_run_goes_on(tmp_path, llama, monkeypatch):
    out, given = tmp_path / "out.gguf", {"format": "gguf", "type": "q4_0"}
    squeeze.quantize(llama, "rtn", out=tmp_path / "whole.gguf", **given)

    def stop(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Export, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            squeeze.quantize(llama, "rtn", out=out, **given)
    with monkeypatch.context() as patch:
        patch.setattr(quantize_gguf, "_blocks", stop)  # nothing is quantised again
        squeeze.quantize(llama, "rtn", out=out, resume=True, **given)
    assert out.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "whole.gguf"]


@pytest.mark.parametrize("is_lost", every(2, [False, True]), ids=["changed", "lost"])
def test_a_stopped_run_does_not_go_on_with_damaged_blocks(tmp_path, llama, monkeypatch, is_lost):
    out, given = tmp_path / "out.gguf", {"format": "gguf", "type": "q4_0"}

    def stop(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Export, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            squeeze.quantize(llama, "rtn", out=out, **given)
    folder = quantize_gguf.blocks_folder(out)
    if is_lost:
        (folder / "checksums.json").unlink()
    else:
        path = folder / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"\.blocks: finished work is damaged: repeat the command, which starts"):
        squeeze.quantize(llama, "rtn", out=out, resume=True, **given)
    assert not out.exists()
    squeeze.quantize(llama, "rtn", out=out, resume=True, **given)
    squeeze.quantize(llama, "rtn", out=tmp_path / "whole.gguf", **given)
    assert out.read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_a_rotation_is_folded_in(tmp_path, llama):
    out = tmp_path / "out.gguf"
    squeeze.quantize(llama, "rtn", out=out, format="gguf", type="q8_0", rotate=True)
    with torch.no_grad():
        wanted = load_model(llama)(TOKENS[:1]).logits[0]
    assert float((gguf_models.llama_logits(out, TOKENS[0]) - wanted).norm() / wanted.norm()) < 0.05


def test_one_matrix_may_have_another_type(tmp_path, llama):
    name = "model.layers.0.mlp.down_proj"
    squeeze.quantize(llama, RTN(grid="q4_0"), methods={name: RTN(grid="q6_k")}, out=tmp_path / "a.gguf", format="gguf")
    types = gguf_models.types_of(tmp_path / "a.gguf")
    assert (types["blk.0.ffn_down.weight"], types["blk.1.ffn_down.weight"]) == ("Q6_K", "Q4_0")


def test_types_to_choose_from():
    types = ["iq2_xxs", "iq2_xs", "q2_k", "iq3_xxs", "q3_k", "iq4_xs", "q4_k", "q5_k", "q6_k", "q8_0"]
    assert quantize_gguf._types(512) == types
    assert quantize_gguf._types(576) == ["iq4_nl", "q4_0", "q5_0", "q5_1", "q8_0"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_types_are_chosen_such_that_the_file_has_the_size(tmp_path, kind):
    folder, out = gguf_models.save(kind, tmp_path / "model"), tmp_path / "out.gguf"
    given = {"format": "gguf", "type": "auto", "calibration": TOKENS[:2]}
    with pytest.raises(SqueezeError, match=r"expected at least \d+ bytes for the file, got 100") as error:
        squeeze.quantize(folder, "rtn", out=out, target_bytes=100, **given)
    least = int(str(error.value).split()[3])
    for size in (least, int(1.5 * least), 4 * least):
        report = squeeze.quantize(folder, "rtn", out=out, target_bytes=size, overwrite=True, **given)
        assert out.stat().st_size <= size and report.stored_bytes < size and not report.fallbacks
        types = {name: kind for name, kind in gguf_models.types_of(out).items() if name.startswith("blk.")}
        assert report.settings["types"].keys() == {kind.lower() for kind in types.values()} - {"f32"}
        if size == int(1.5 * least):
            assert out.stat().st_size > 0.95 * size and len(report.settings["types"]) > 1
    assert set(report.settings["types"]) == {"q8_0"}
    with pytest.raises(SqueezeError, match=f"^expected at least {least} bytes for the file, got {least - 1}$"):
        squeeze.quantize(folder, "rtn", out=out, target_bytes=least - 1, overwrite=True, **given)


def test_the_size_of_a_file_is_known_before_it_is_written(tmp_path):
    for kind in ("llama3", "mixtral"):
        export = Export.of(Checkpoint.open(gguf_models.save(kind, tmp_path / kind)))
        export.write(tmp_path / "a.gguf", "q4_k", overwrite=True)
        head, sizes = export.size("q4_k")
        assert head + sum(sizes.values()) == (tmp_path / "a.gguf").stat().st_size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, "bits cannot be set for the format gguf, whose `type` decides it"),
        ({"grid": "nf4"}, "grid cannot be set for the format gguf, whose `type` decides it"),
        ({"target_bits": 3.0}, "the format gguf takes a size as `target_bytes` with `type` auto"),
        ({"target_bytes": 10**6}, "the format gguf takes a size as `target_bytes` with `type` auto"),
        ({"type": "auto"}, "`type` auto needs `target_bytes`, the size of the file"),
        (
            {"type": "auto", "target_bytes": 10**6, "methods": {"a": RTN(grid="q4_0")}},
            "`type` auto chooses the types of all matrices: name no methods of some",
        ),
        ({"dynamic": True}, "the format gguf has neither dynamic scales nor outlier columns"),
        ({"scheme": "w8a8"}, "`scheme` w8a8 needs the format compressed-tensors, got gguf"),
        ({"outliers": 2}, "the format gguf has neither dynamic scales nor outlier columns"),
        ({"method": GPTQ()}, "the grid integer is not one of GGUF's: choose from q4_0, .*"),
    ],
)
def test_refuses_options_that_a_type_decides(llama, tmp_path, options, message):
    with pytest.raises(OptionError, match=f"^{message}$"):
        squeeze.quantize(llama, out=tmp_path / "out.gguf", format="gguf", calibration=TOKENS, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["compressed-tensors", "squeeze", "dense"])
@pytest.mark.parametrize("type", ["q4_k", "auto"])
def test_refuses_a_type_for_another_format(llama, tmp_path, format, type):
    with pytest.raises(OptionError, match=f"^`type` needs the format gguf, got {format}$"):
        squeeze.quantize(llama, "rtn", out=tmp_path / "out", format=format, type=type)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"type": "q4_k"}, {"type": "auto", "target_bytes": 10**6}], ids=str)
def test_a_network_of_which_no_matrix_fits(tmp_path, monkeypatch, options):
    """Check that the error comes before anything is written for the calibration."""
    sizes = {"hidden_size": 72, "intermediate_size": 136, "num_attention_heads": 3, "num_key_value_heads": 3}
    folder = gguf_models.save("llama", tmp_path / "model", **sizes)
    monkeypatch.setattr("squeeze.recipes.run.Run.tokens", None)
    with pytest.raises(
        FormatError, match=r"model: no matrix can be stored: its rows are not whole blocks of any type$"
    ):
        squeeze.quantize(folder, "gptq", out=tmp_path / "out.gguf", format="gguf", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_grids_of_gguf_go_to_gguf_or_dense_only(llama, tmp_path):
    with pytest.raises(FormatError, match=r"^the grid q4_k is one of GGUF's: use the format gguf, or dense$"):
        squeeze.quantize(llama, RTN(grid="q4_k"), out=tmp_path / "out")
    squeeze.quantize(llama, RTN(grid="q4_k"), out=tmp_path / "out", format="dense")
    with pytest.raises(OptionError, match="type 'q9_k' is unknown: choose from q4_0, "):
        squeeze.quantize(llama, "rtn", out=tmp_path / "out.gguf", format="gguf", type="q9_k")


def test_the_command_writes_the_type_and_refuses_to_overwrite(tmp_path, llama):
    out = tmp_path / "out.gguf"
    arguments = ["quantize", llama, out, "--format", "gguf", "--method", "rtn", "--type", "q5_k", "-T", "1"]
    done = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["settings"]["type"] == "q5_k"
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, f"Error: {out} already exists; use -f to overwrite")
    assert CliRunner().invoke(main, [*map(str, arguments), "-f"]).exit_code == 0
    done = CliRunner().invoke(main, [*map(str, arguments), "-f", "--pack"])
    assert done.exit_code == 2 and "--pack takes formats that are folders, got gguf" in done.stderr
    (tmp_path / "folder").mkdir()
    for target, message in (
        (tmp_path / "folder", f"{tmp_path}/folder is a folder, and the format gguf is a file: name one, such as"),
        (tmp_path / "no" / "a.gguf", f"the folder {tmp_path}/no does not exist"),
    ):
        with pytest.raises(SqueezeError, match=f"^{message}"):
            squeeze.quantize(llama, "rtn", out=target, format="gguf")


def _logits_of(path, folder):
    return gguf_models.dequantised(path, Export.of(Checkpoint.open(folder)))(TOKENS).logits
