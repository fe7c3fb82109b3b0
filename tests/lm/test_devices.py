"""Names of devices with and without GPUs, and errors for others."""

import builtins
import ctypes
from types import SimpleNamespace

import pytest
import torch

from squeeze.errors import DeviceError
from squeeze.lm import devices
from squeeze.lm.devices import load_on_devices, torch_devices


@pytest.fixture
def gpus(monkeypatch):
    """Set the number of GPUs."""

    def there_are(count: int) -> None:
        monkeypatch.setattr(devices, "_has_driver", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return there_are


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("auto", ["cuda:0", "cuda:1"]),
        ("cpu", []),
        ("cuda", ["cuda:0", "cuda:1"]),
        ("cuda:0", ["cuda:0"]),
        ("cuda:1", ["cuda:1"]),
    ],
)
def test_names_become_devices_of_torch(gpus, name, wanted):
    gpus(2)
    assert torch_devices(name) == wanted


def test_auto_without_a_gpu_is_the_processor(gpus):
    gpus(0)
    assert torch_devices("auto") == torch_devices("cpu") == []


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3"])
def test_refuses_cuda_without_a_gpu(gpus, name):
    gpus(0)
    with pytest.raises(DeviceError) as error:
        torch_devices(name)
    assert str(error.value) == f"device {name}: torch finds no GPU here; use `device` auto or cpu"


def test_refuses_a_number_that_no_gpu_has(gpus):
    gpus(2)
    with pytest.raises(DeviceError, match=r"^device cuda:2: the GPUs here are cuda:0 to cuda:1$"):
        torch_devices("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:", "cuda:x", "CPU", "cuda:0,1", "cuda:9999", "mps\n"])
def test_refuses_other_names(gpus, name):
    gpus(2)
    with pytest.raises(DeviceError) as error:
        torch_devices(name)
    assert str(error.value).endswith(": use auto, cpu, cuda or cuda:N") and "\n" not in str(error.value)


def test_torch_is_left_alone_where_there_is_no_driver(monkeypatch):
    def missing(name):
        raise OSError(name)

    def refuse(name, *rest):
        assert name != "torch"
        return right(name, *rest)

    right = builtins.__import__
    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert torch_devices("auto") == []


def test_refuses_cuda_without_torch(monkeypatch):
    monkeypatch.setattr(devices, "_has_driver", lambda: True)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert torch_devices("auto") == []
    with pytest.raises(DeviceError, match="torch finds no GPU here"):
        torch_devices("cuda")


def test_a_gpu_that_cannot_run_it_is_left_alone_unless_asked_for(gpus):
    def full(device):
        raise DeviceError(f"{device} has too little memory")

    gpus(1)
    loaded = SimpleNamespace(network="compiled", on=full)
    assert load_on_devices(loaded, "auto") == load_on_devices(loaded, "cpu") == ["compiled"]
    for name in ("cuda", "cuda:0"):
        with pytest.raises(DeviceError, match=r"^cuda:0 has too little memory$"):
            load_on_devices(loaded, name)
    loaded.on = lambda device: device
    assert load_on_devices(loaded, "auto") == load_on_devices(loaded, "cuda:0") == ["cuda:0"]


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_uses_all_gpus_that_can_run_it(gpus, name):
    def second_full(device):
        if device == "cuda:1":
            raise DeviceError(f"{device} has too little memory")
        return device

    gpus(3)
    assert load_on_devices(SimpleNamespace(on=lambda device: device), name) == ["cuda:0", "cuda:1", "cuda:2"]
    loaded = SimpleNamespace(network="compiled", on=second_full)
    assert load_on_devices(loaded, name) == ["cuda:0", "cuda:2"]
    with pytest.raises(DeviceError, match=r"^cuda:1 has too little memory$"):
        load_on_devices(loaded, "cuda:1")
