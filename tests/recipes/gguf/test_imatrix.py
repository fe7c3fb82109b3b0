"""llama.cpp's importance matrix: what its quantiser reads of the file is what the network's inputs are."""

import json

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from bench.shared import llamacpp
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.cli import main
from squeeze.errors import ModelError, SqueezeError
from squeeze.integrations.gguf.export import Export
from squeeze.integrations.load_model import load_model
from squeeze.lm.gguffile import GgufFile
from squeeze.recipes.gguf.imatrix import imatrix
from tests.makers import gguf_models, networks

pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 390, (3, 24), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return gguf_models.save("llama", tmp_path_factory.mktemp("models") / "llama")


def read(path):
    """Return the importance of each tensor as llama.cpp's quantiser reads it, with ones if no token came."""
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
    found = {}
    for name in (name.removesuffix(".counts") for name in tensors if name.endswith(".counts")):
        squares, counts = tensors[f"{name}.in_sum2"], tensors[f"{name}.counts"]
        assert squares.dtype == counts.dtype == np.float32 and counts.shape == (len(squares), 1)
        found[name] = np.where(counts > 0, squares / np.maximum(counts, 1), 1).astype(np.float32)
    return found


def test_it_holds_the_mean_squares_of_all_inputs(tmp_path, llama):
    count = imatrix(llama, tmp_path / "a.gguf", calibration=TOKENS)
    network, seen = load_model(llama), {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, x, __, name=name: seen.update({name: x[0]}))
    with torch.no_grad():
        network(TOKENS)
    named, found = Export.of(Checkpoint.open(llama)).named, read(tmp_path / "a.gguf")
    assert len(found) == count == 14 and all(name.startswith("blk.") for name in found)
    for name, values in found.items():
        wanted = seen[named[name][0].removesuffix(".weight")].flatten(0, 1).square().mean(0)
        assert torch.allclose(torch.from_numpy(values[0]), wanted, rtol=1e-4), name


def test_the_file_names_its_calibration(tmp_path, llama):
    text = tmp_path / "text.txt"
    text.write_text("def main():\n    return 1\n" * 40)
    imatrix(llama, tmp_path / "a.gguf", calibration=text, samples=2, sequence_length=16)
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["general.type"].contents() == "imatrix" and fields["imatrix.datasets"].contents() == ["text.txt"]
    assert (fields["imatrix.chunk_count"].contents(), fields["imatrix.chunk_size"].contents()) == (2, 16)


def test_experts_have_their_own_numbers_of_tokens(tmp_path):
    folder = gguf_models.save("mixtral", tmp_path / "model")
    imatrix(folder, tmp_path / "a.gguf", calibration=TOKENS[:1, :4])
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    counts = tensors["blk.0.ffn_down_exps.weight.counts"]
    assert counts.shape == (4, 1) and counts.sum() == 8  # two experts a token
    assert tensors["blk.0.ffn_down_exps.weight.in_sum2"].shape == (4, 256)
    assert not tensors["blk.0.ffn_down_exps.weight.in_sum2"][counts[:, 0] == 0].any()
    assert tensors["blk.0.attn_q.weight.counts"].tolist() == [[4]]


def test_llama_cpps_quantiser_loses_less_with_it(tmp_path, llama):
    pytest.importorskip("llama_cpp")
    floats = tmp_path / "floats.gguf"
    Export.of(Checkpoint.open(llama)).write(floats)
    imatrix(llama, tmp_path / "a.gguf", calibration=TOKENS)
    importance, lost = read(tmp_path / "a.gguf"), {}
    for name, given in (("plain", {}), ("imatrix", importance)):
        llamacpp.quantise(floats, tmp_path / name, "q4_k", gguf.GGMLQuantizationType.Q8_0, given, 1)
        before, after = GgufFile(floats), GgufFile(tmp_path / name)
        errors = [
            (np.square(before.float_rows(key, 0, rows) - after.float_rows(key, 0, rows)) * importance[key]).sum()
            for key, (rows, *_) in before.shapes.items()
            if key in importance
        ]
        lost[name] = np.sum(errors)
    assert lost["imatrix"] < 0.95 * lost["plain"]


def test_the_command_writes_the_file_once(tmp_path, llama):
    out = tmp_path / "a.gguf"
    arguments = [*map(str, ("imatrix", llama, "-o", out)), "--samples", "2", "--sequence-length", "8", "-T", "1"]
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["tensors"] == len(read(out)) == 14
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, f"Error: {out} already exists; use -f to overwrite")
    done = CliRunner().invoke(main, [*arguments, "-f"])
    assert done.exit_code == 0 and "importance of the inputs of 14 tensors" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_what_cannot_be_done_is_one_line_and_leaves_nothing(tmp_path, llama):
    networks.save("gpt2", tmp_path / "other")
    with pytest.raises(ModelError, match=r"the architecture 'gpt2' cannot be written as GGUF, only llama, "):
        imatrix(tmp_path / "other", tmp_path / "a.gguf", calibration=TOKENS)
    with pytest.raises(SqueezeError, match=r"^the folder .*none does not exist$"):
        imatrix(llama, tmp_path / "none" / "a.gguf", calibration=TOKENS)
    text = tmp_path / "text.txt"
    text.write_text("short")
    with pytest.raises(SqueezeError, match=r"name a longer text"):
        imatrix(llama, tmp_path / "a.gguf", calibration=text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "text.txt"]
