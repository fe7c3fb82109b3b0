"""The fastest implementation on a device is measured once and kept, and files of other devices are ignored."""

import importlib
import json

import pytest
import torch

from squeeze.kernels import choices
from squeeze.kernels.choices import Choices
from tests.makers import fake_cuda


class Clock:
    """Says how long each way takes, and counts what it is asked."""

    def __init__(self, **seconds):
        self.seconds, self.asked = seconds, []

    def __call__(self, call):
        name = call()
        self.asked.append(name)
        if isinstance(self.seconds[name], Exception):
            raise self.seconds[name]
        return self.seconds[name]


def found(path, clock, names="kernel dense", default="kernel", device="A GPU", triton="3"):
    return Choices(path, device, triton, clock).of("a shape", names.split(), lambda name: name, default)


def test_the_fastest_is_measured_once(tmp_path):
    path, clock = tmp_path / "new" / "it.json", Clock(kernel=3.0, dense=2.0)
    assert [found(path, clock) for _ in range(3)] == ["dense"] * 3
    assert clock.asked == ["kernel", "dense"]
    assert [one.name for one in path.parent.iterdir()] == ["it.json"]


def test_the_default_wins_if_others_gain_little(tmp_path):
    assert found(tmp_path / "it.json", Clock(kernel=2.02, dense=2.0)) == "kernel"


def test_a_kernel_that_the_device_cannot_run_is_skipped(tmp_path):
    assert found(tmp_path / "a.json", Clock(kernel=RuntimeError("out of resources"), dense=2.0)) == "dense"


@pytest.mark.parametrize(
    "seconds, asked",
    [
        ({"kernel": 2.0, "dense": torch.OutOfMemoryError()}, ["kernel", "dense"]),
        ({"kernel": torch.OutOfMemoryError(), "dense": 1.0}, ["kernel"]),
        ({"kernel": ValueError(), "dense": ValueError()}, ["kernel", "dense"]),
        ({"kernel": 2.0, "dense": 1.0}, ["kernel", "dense"]),
    ],
    ids=["no memory", "no memory for the first", "none runs", "none is right"],
)
def test_the_default_serves_this_process_if_no_result_is_right(seconds, asked, tmp_path):
    path, clock = tmp_path / "it.json", Clock(**seconds)
    one = Choices(path, "A GPU", "3", clock)
    for _ in range(2):
        assert one.of("a shape", ["kernel", "dense"], lambda name: name, "kernel", lambda name: False) == "kernel"
    assert clock.asked == asked and not path.exists()
    assert found(path, Clock(kernel=2.0, dense=1.0)) == "dense"


def test_a_kernel_with_a_wrong_result_is_skipped(tmp_path):
    clock = Clock(kernel=1.0, dense=2.0)
    both = Choices(tmp_path / "it.json", "A GPU", "3", clock)
    way = both.of("a shape", ["kernel", "dense"], lambda name: name, "kernel", lambda name: name != "kernel")
    assert way == "dense"


def test_nothing_is_kept_if_nothing_can_be_measured(tmp_path):
    assert found(tmp_path / "it.json", Clock(kernel=None, dense=None)) == "kernel"
    assert not (tmp_path / "it.json").exists()


def test_a_name_that_no_longer_exists_is_measured_again(tmp_path):
    path = tmp_path / "it.json"
    found(path, Clock(kernel=3.0, dense=2.0))
    clock = Clock(kernel=1.0, other=2.0)
    assert found(path, clock, "kernel other") == "kernel" and clock.asked == ["kernel", "other"]


@pytest.mark.parametrize("text", ["", "{", "[]", "7", json.dumps({"format": 2}), json.dumps({"format": 1})])
def test_a_damaged_file_is_ignored(text, tmp_path):
    path = tmp_path / "it.json"
    path.write_text(text)
    assert found(path, Clock(kernel=3.0, dense=2.0)) == "dense"
    assert json.loads(path.read_text())["chosen"] == {"a shape": "dense"}


@pytest.mark.parametrize("other", [{"device": "Another"}, {"triton": "4"}])
def test_a_file_of_another_device_is_ignored(other, tmp_path):
    path = tmp_path / "it.json"
    found(path, Clock(kernel=3.0, dense=2.0))
    assert found(path, Clock(kernel=1.0, dense=2.0), **other) == "kernel"


def test_two_processes_keep_the_choices_of_both(tmp_path):
    path, clock = tmp_path / "it.json", Clock(kernel=3.0, dense=2.0)
    one, two = (Choices(path, "A GPU", "3", clock) for _ in range(2))
    one.of("first", ["kernel", "dense"], lambda name: name, "kernel")
    two.of("second", ["kernel", "dense"], lambda name: name, "kernel")
    assert set(json.loads(path.read_text())["chosen"]) == {"first", "second"}


def test_a_folder_that_cannot_be_written_to_breaks_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    assert found(tmp_path / "file" / "it.json", Clock(kernel=3.0, dense=2.0)) == "dense"


def test_remembered_returns_the_choices_of_a_device(tmp_path, monkeypatch):
    monkeypatch.setattr(choices, "cache_root", lambda: tmp_path / "numba")
    assert choices.remembered("NVIDIA H100 80GB HBM3") == {}
    path = choices._path("NVIDIA H100 80GB HBM3")
    assert path == tmp_path / "kernels" / "nvidia-h100-80gb-hbm3.json"
    found(path, Clock(kernel=3.0, dense=2.0), device="NVIDIA H100 80GB HBM3", triton=choices._triton())
    assert choices.remembered("NVIDIA H100 80GB HBM3") == {"a shape": "dense"}


def test_close_to_accepts_rounding_and_refuses_errors():
    right = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)).half()
    asked = []
    near = choices.close_to(lambda: asked.append(1) or right)
    assert not asked and near(right * 1.04) and not near(right * 1.06) and not near(right * torch.nan)
    assert asked == [1]
    assert [choices.power_of_two(rows) for rows in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


class Rows(list):
    """Stands for activations [3, 7] on a GPU."""

    device, dtype, shape = torch.device("cuda"), torch.float16, (3, 7)


FACTORS = {  # a folder, what multiplies there, the factors, and what they are called
    "lowrank": ("multiply", [(5, 2), (2, 7)], "pair 5x7 of rank 2"),
    "blr": ("monarch", [(2, 3, 8), (4, 4, 7)], "Monarch 2x3x8 by 4x4x7"),
}


@pytest.mark.parametrize("name", [*FACTORS, "tt"])
@pytest.mark.parametrize("seconds", [{"torch": 2.0, "kernel": 1.0}, {"torch": 1.0, "kernel": 2.0}])
def test_factors_are_multiplied_by_the_fastest_product(name, seconds, monkeypatch, tmp_path):
    kernel = pytest.importorskip(f"squeeze.kernels.{name}.kernel", reason="triton is not installed")
    module = importlib.import_module(f"squeeze.kernels.{name}")
    found = Choices(tmp_path / "it.json", "A GPU", "3", lambda call: seconds[call()])
    monkeypatch.setattr(choices, "of_device", lambda device: found)
    monkeypatch.setattr(choices, "close_to", lambda right: lambda result: True)
    function, shapes, what = FACTORS.get(name, ("multiply", [], "tensor train 1x2x3x4 by 4x5x6x1"))
    monkeypatch.setattr(module, f"reference_{function}", lambda *given: "torch")
    monkeypatch.setattr(kernel, function, lambda *given: "kernel")
    given = [torch.empty(shape) for shape in shapes] or [[torch.empty(1, 2, 3, 4), torch.empty(4, 5, 6, 1)]]
    with torch.no_grad():
        assert getattr(module, function)(Rows(range(3)), *given) == min(seconds, key=seconds.get)
    assert list(found._chosen) == [f"{what}, float16, 4 rows"]


@pytest.mark.parametrize(
    "shapes",
    [[(1, 2, 129, 4), (4, 5, 6, 1)], [(1, 2, 3, 4), (4, 129, 6, 1)], [(1, 2, 3, 4), (4, 5, 43, 3), (3, 2, 2, 1)]],
    ids=["first", "second", "with the rank behind it"],
)
def test_a_train_whose_sides_fit_no_tile_is_not_measured(shapes, monkeypatch):
    pytest.importorskip("squeeze.kernels.tt.kernel", reason="triton is not installed")
    module = importlib.import_module("squeeze.kernels.tt")
    monkeypatch.setattr(choices, "of_device", lambda device: pytest.fail("a device is asked"))
    monkeypatch.setattr(module, "reference_multiply", lambda *given: "torch")
    with torch.no_grad():
        assert module.multiply(Rows(range(3)), [torch.empty(shape) for shape in shapes]) == "torch"


@pytest.mark.parametrize(
    "side, dtype, launched",
    [
        (64, torch.bfloat16, (3, 4)),
        (64, torch.float32, (3, 8)),
        (128, torch.bfloat16, (2, 8)),
        (128, torch.float32, None),
    ],
)
def test_a_train_is_launched_as_its_tiles_have_room(side, dtype, launched, monkeypatch):
    """Stages and warps: cores of three ranks with sides of 128 take more than an H100's program may have."""
    kernel = pytest.importorskip("squeeze.kernels.tt.kernel", reason="triton is not installed")
    cores = [torch.empty(1, side, side, 8, dtype=dtype), torch.empty(8, side, side, 1, dtype=dtype)]
    assert kernel.fits(1, cores) == (launched is not None)
    noted = {}

    class Noted:
        def __getitem__(self, grid):
            return lambda *arguments, **constants: noted.update(constants)

    monkeypatch.setattr(kernel, "_two", Noted())
    kernel.multiply(torch.empty(1, side * side, dtype=dtype), cores)
    assert launched in (None, (noted["num_stages"], noted["num_warps"]))


class Many(Rows):
    """Activations with the given numbers of rows and inputs, on a GPU."""

    def __init__(self, rows, inputs):
        self.shape = (rows, inputs)

    def __len__(self):
        return self.shape[0]


@pytest.mark.parametrize(
    "rows, shapes",
    [
        (1 << 16, [(1, 2, 3, 1), (1, 5, 6, 1)]),
        (1 << 13, [(1, 2, 3, 4), (4, 8, 6, 3), (3, 8, 2, 1)]),
        (2049, [(1, 64, 64, 256), (256, 64, 64, 1)]),
    ],
    ids=["a grid", "a grid, with the third core", "memory"],
)
def test_a_train_with_more_rows_than_have_room_goes_to_torch(rows, shapes, monkeypatch):
    pytest.importorskip("squeeze.kernels.tt.kernel", reason="triton is not installed")
    module = importlib.import_module("squeeze.kernels.tt")
    monkeypatch.setattr(choices, "fastest", lambda x, what, ways, default, right: "kernel")
    monkeypatch.setattr(importlib.import_module("squeeze.kernels.tt.kernel"), "multiply", lambda *given: "kernel")
    monkeypatch.setattr(module, "reference_multiply", lambda *given: "torch")
    cores = [torch.empty(shape) for shape in shapes]
    with torch.no_grad():
        assert [module.multiply(Many(count, 7), cores) for count in (rows, rows - 1)] == ["torch", "kernel"]


def test_a_product_of_more_numbers_than_the_kernel_counts_goes_to_torch(monkeypatch):
    pytest.importorskip("squeeze.kernels.blr.kernel", reason="triton is not installed")
    module = importlib.import_module("squeeze.kernels.blr")
    monkeypatch.setattr(choices, "fastest", lambda x, what, ways, default, right: "kernel")
    monkeypatch.setattr(importlib.import_module("squeeze.kernels.blr.kernel"), "monarch", lambda *given: "kernel")
    monkeypatch.setattr(module, "reference_monarch", lambda *given: "torch")
    outer, inner = torch.empty(2, 64, 8), torch.empty(4, 4, 8)
    with torch.no_grad():
        found = [module.monarch(Many(rows, 32), outer, inner) for rows in (1 << 24, (1 << 24) - 1)]
    assert found == ["torch", "kernel"]


def test_no_rows_are_not_measured(monkeypatch):
    monkeypatch.setattr(choices, "of_device", lambda device: pytest.fail("a device is asked"))
    ways = {"kernel": lambda: pytest.fail("it is called"), "torch": list}
    assert choices.fastest(Rows(), "a pair", ways, "kernel", "torch") == "torch"


def test_nothing_is_measured_while_torch_compiles(monkeypatch):
    monkeypatch.setattr(choices, "of_device", lambda device: pytest.fail("a device is asked"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert choices.fastest(Rows([1]), "a pair", {"kernel": list, "torch": list}, "kernel", "torch") == "kernel"


def test_time_is_measured_on_the_tensors_device(monkeypatch, tmp_path):
    """Eight calls are captured in a graph, and the time of filling the cache is subtracted."""
    monkeypatch.setattr(choices, "cache_root", lambda: tmp_path / "numba")
    monkeypatch.setattr(choices, "_FILLER", 1)
    current = fake_cuda.install(monkeypatch)
    choices.of_device.cache_clear()
    device, called = torch.device("cuda:1"), []
    found = choices.of_device(device)
    choices.of_device.cache_clear()
    assert found.device == fake_cuda.NAME and found.seconds(lambda: called.append(1)) == choices._LEAST  # no difference
    assert current == [device] and len(called) == 2 + choices._CALLS
    assert [graph.replayed for graph in fake_cuda.Graph.made] == [1 + choices._ROUNDS] * 2
    assert choices._recorded([lambda: None]) == pytest.approx(1e-3)  # 8 ms for eight


def test_a_failed_capture_restores_the_stream(monkeypatch):
    monkeypatch.setattr(choices, "_FILLER", 1)
    fake_cuda.install(monkeypatch)
    before, calls = torch.cuda.current_stream(), []

    def fails():
        calls.append(torch.cuda.current_stream())
        if len(calls) > 2:  # so it is recorded
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        choices.measured_seconds(torch.device("cuda:1"), fails)
    assert len(calls) == 3 and before not in calls and torch.cuda.current_stream() is before


@pytest.mark.parametrize("capturing", [[True], [False, True]], ids=["of the current device", "of that of x"])
def test_nothing_is_measured_while_a_graph_is_recorded(capturing, monkeypatch):
    fake_cuda.install(monkeypatch)
    asked = iter(capturing)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: next(asked))
    assert choices.measured_seconds(torch.device("cuda:1"), lambda: pytest.fail("it is called")) is None
    assert list(asked) == []
