"""Files cross engines: what torch writes, the compiled engine reads, and the other way round."""

import io
import threading
from copy import copy
from pathlib import Path
from types import SimpleNamespace

import pytest

import squeeze
from squeeze.codecs.tokenwise import lanes, prefill
from squeeze.errors import DeviceError, LevelError
from squeeze.lm import devices, models
from squeeze.lm.devices import Pool
from squeeze.lm.models import LoadedModel
from squeeze.lm.torch_engine import TorchLlama
from squeeze.lm.torch_lanes import TorchLanes
from tests.makers import command
from tests.makers.cases import all_slow_but
from tests.makers.tokenwise import DATA, TEXT, codecs_of, preset


@pytest.fixture
def torch_here(monkeypatch):
    """Let the torch engine run on the processor if a GPU is requested; return what it was fed."""
    fed, forward = [], TorchLanes.forward

    def noted(session, tokens, counts=None):
        fed.append(tokens.shape)
        forward(session, tokens, counts)

    monkeypatch.setattr(devices, "torch_devices", lambda name: [] if name == "cpu" else ["cpu"])
    monkeypatch.setattr(TorchLanes, "forward", noted)
    return fed


@pytest.mark.parametrize(
    ("count", "window", "threads"),
    all_slow_but(
        [(1, 64, 2), (3, 16, 1), (40, 32, 2)],
        [(1, 64, 1), (1, 64, 2), (3, 16, 1), (3, 16, 2), (40, 32, 1), (40, 32, 2)],
    ),
)
def test_both_engines_write_and_read_the_same_bytes(folder, count, window, threads):
    loaded, text = models.find(folder), TEXT[: 100 + 20 * count] + b"\xff\xfe" + TEXT[:150]
    compiled, engine, chosen = loaded.network, loaded.on("cpu"), preset(len(text), count, window)
    coded = lanes.encode(text, compiled, chosen, threads)
    assert coded is not None and lanes.encode(text, engine, chosen, threads) == coded
    for model in (compiled, engine):
        assert lanes.decode(coded[1], coded[0], model, chosen, threads).tobytes() == text
    assert lanes.decode(coded[1], coded[0], engine, chosen, threads, None, text).tobytes() == text


def test_bytes_do_not_depend_on_positions_at_once(folder, monkeypatch):
    loaded, text = models.find(folder), TEXT[:1_000]
    expected = lanes.encode(text, loaded.network, preset(len(text), 3, 32))
    monkeypatch.setattr(prefill, "ROWS", 40)
    assert lanes.encode(text, loaded.on("cpu"), preset(len(text), 3, 32), 2) == expected


def test_files_of_one_engine_open_with_the_other(folder, only_tokenwise, torch_here):
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


@pytest.fixture
def three_gpus(monkeypatch):
    """Name three GPUs for torch engines on the processor; return which of them coded or decoded each text, and how many
    at once."""
    worked, busy, most = [], [], []

    def on(loaded, name):
        engine = copy(engines.setdefault(loaded.identity, TorchLlama(loaded.weights, loaded.tokenizer, "cpu")))
        engine.gpu = name
        return engine

    def noted(work, model_of):
        def run(*given):
            model = model_of(given)
            assert model.gpu not in busy, "a GPU works on one text at a time"
            busy.append(model.gpu)
            most.append(len(busy))
            worked.append(model.gpu)
            together.wait(timeout=60)
            try:
                return work(*given)
            finally:
                busy.remove(model.gpu)

        return run

    engines, together = {}, threading.Barrier(3)
    monkeypatch.setattr(devices, "torch_devices", lambda name: [] if name == "cpu" else ["cuda:0", "cuda:1", "cuda:2"])
    monkeypatch.setattr(LoadedModel, "on", on)
    monkeypatch.setattr(lanes, "encode", noted(lanes.encode, lambda given: given[1]))
    monkeypatch.setattr(lanes, "decode", noted(lanes.decode, lambda given: given[2]))
    return SimpleNamespace(worked=worked, most=most)


def test_blocks_are_spread_over_gpus(folder, only_tokenwise, three_gpus):
    """Three texts are coded at once, each on its GPU; the bytes are those of one processor."""
    text, chosen = TEXT[:600], {"model": folder, "block_size": 200, "lanes": 3}
    coded = squeeze.compress(text, 8, device="cuda", verify=False, **chosen)
    assert sorted(three_gpus.worked) == ["cuda:0", "cuda:1", "cuda:2"] and max(three_gpus.most) == 3
    three_gpus.worked.clear()
    assert squeeze.decompress(coded, device="auto") == text
    assert sorted(three_gpus.worked) == ["cuda:0", "cuda:1", "cuda:2"]


def test_as_many_texts_at_once_as_memory_allows():
    """Give the first text a GPU whatever it takes."""
    pool, free = Pool(["a", "b", "c"]), lambda total: total <= 10
    with pool.borrowed(20, free) as first:
        assert first == "a"
    with pool.borrowed(4, free) as first, pool.borrowed(5, free) as second:
        assert (first, second) == ("a", "b")
        got = []
        waiting = threading.Thread(target=lambda: got.append(pool.borrowed(2, free).__enter__()))
        waiting.start()
        assert not got
    waiting.join(timeout=60)
    assert len(got) == 1


def test_commands_run_on_a_device(folder, only_tokenwise, torch_here, tmp_path, monkeypatch):
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
def test_a_missing_gpu_is_an_error_of_one_line(coded, folder, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "_gpus", lambda: 0)
    Path("text").write_bytes(DATA)
    Path("old.sqz").write_bytes(coded)
    said = command.fails(*words, "--device", "cuda")
    assert said == f"Error: {words[-1]}: device cuda: torch finds no GPU here; use --device auto or cpu\n"
    assert command.names() == ["old.sqz", "text"]


def test_refuses_a_gpu_for_llamacpp_and_levels_1_to_6(folder, torch_here):
    with pytest.raises(LevelError, match=r"lanes, window and device belong to levels 7 to 9$"):
        squeeze.compress(TEXT, 3, device="cuda")
    assert squeeze.compress(TEXT, 3, device="cpu") == squeeze.compress(TEXT, 3)
    with pytest.raises(
        DeviceError, match=r"^llama.cpp runs on the processor here: leave out the device, or the backend$"
    ):
        squeeze.compress(TEXT, 8, backend="llamacpp", device="cuda")
