"""Files cross engines: what torch writes, the compiled engine reads, and the other way round."""

import io
from pathlib import Path

import pytest

import squeeze
from squeeze.codecs.tokenwise import lanes, prefill
from squeeze.errors import DeviceError, LevelError
from squeeze.lm import devices, models
from squeeze.lm.torch_engine import TorchLanes
from tests.makers import command
from tests.makers.tokenwise import DATA, TEXT, codecs_of, preset


@pytest.fixture
def torch_here(monkeypatch):
    """The torch engine runs, on the processor, where a GPU is asked for. Gives what it was fed."""
    fed, forward = [], TorchLanes.forward

    def noted(session, tokens, counts=None):
        fed.append(tokens.shape)
        forward(session, tokens, counts)

    monkeypatch.setattr(devices, "torch_device", lambda name: None if name == "cpu" else "cpu")
    monkeypatch.setattr(TorchLanes, "forward", noted)
    return fed


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("count", "window"), [(1, 64), (3, 16), (40, 32)])
def test_both_engines_write_and_read_the_same_bytes(folder, count, window, threads):
    loaded, text = models.find(folder), TEXT[: 100 + 20 * count] + b"\xff\xfe" + TEXT[:150]
    compiled, engine, chosen = loaded.network, loaded.on("cpu"), preset(len(text), count, window)
    coded = lanes.encode(text, compiled, chosen, threads)
    assert coded is not None and lanes.encode(text, engine, chosen, threads) == coded
    for model in (compiled, engine):
        assert lanes.decode(coded[1], coded[0], model, chosen, threads).tobytes() == text
    assert lanes.decode(coded[1], coded[0], engine, chosen, threads, None, text).tobytes() == text


def test_few_positions_at_once(folder, monkeypatch):
    loaded, text = models.find(folder), TEXT[:1_000]
    expected = lanes.encode(text, loaded.network, preset(len(text), 3, 32))
    monkeypatch.setattr(prefill, "ROWS", 40)
    assert lanes.encode(text, loaded.on("cpu"), preset(len(text), 3, 32), 2) == expected


def test_whole_files(folder, only_tokenwise, torch_here):
    chosen = {"model": folder, "block_size": 1_500, "lanes": 24}
    coded = squeeze.compress(DATA, 8, device="cpu", **chosen)
    assert not torch_here
    assert squeeze.compress(DATA, 8, device="cuda", verify=False, **chosen) == coded
    assert codecs_of(coded) == ["tokenwise", "stored", "tokenwise"] and torch_here
    for device in ("cpu", "cuda"):
        torch_here.clear()
        assert squeeze.decompress(coded, device=device) == DATA
        assert bool(torch_here) == (device == "cuda")
    with squeeze.open(io.BytesIO(coded), device="cuda") as file:
        file.seek(3_100)
        assert file.read(99) == DATA[3_100:3_199]


def test_commands(folder, only_tokenwise, torch_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text").write_bytes(TEXT[:1_500])
    chosen = ("compress", "-8", "--model", folder, "--lanes", "20", "text")
    command.run(*chosen, "--device", "cuda")
    assert torch_here
    torch_here.clear()
    command.run(*chosen, "-o", "again.sqz", "--device", "cpu")
    assert Path("text.sqz").read_bytes() == Path("again.sqz").read_bytes() and not torch_here
    command.run("test", "--device", "cuda:0", "text.sqz")
    assert torch_here
    torch_here.clear()
    command.run("decompress", "--device", "cuda", "text.sqz", "-o", "new")
    assert Path("new").read_bytes() == TEXT[:1_500] and torch_here


@pytest.mark.parametrize("words", [["compress", "-8", "text"], ["decompress", "old.sqz"], ["test", "old.sqz"]])
def test_no_gpu_is_one_line(coded, folder, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "_gpus", lambda: 0)
    Path("text").write_bytes(DATA)
    Path("old.sqz").write_bytes(coded)
    said = command.fails(*words, "--device", "cuda")
    assert said == f"Error: {words[-1]}: device cuda: torch finds no GPU here; use --device auto or cpu\n"
    assert command.names() == ["old.sqz", "text"]


def test_what_runs_on_no_gpu(folder, torch_here):
    with pytest.raises(LevelError, match=r"lanes, window, batch and device belong to levels 7 to 9$"):
        squeeze.compress(TEXT, 3, device="cuda")
    assert squeeze.compress(TEXT, 3, device="cpu") == squeeze.compress(TEXT, 3)
    with pytest.raises(
        DeviceError, match=r"^llama.cpp runs on the processor here: leave out the device, or the backend$"
    ):
        squeeze.compress(TEXT, 8, backend="llamacpp", device="cuda")
