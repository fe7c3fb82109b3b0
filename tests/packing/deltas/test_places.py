"""Folders, URLs and servers of messages, and the engine for vLLM."""

import urllib.request
from dataclasses import dataclass

import pytest
import torch

from squeeze.errors import DamagedError, SqueezeError
from squeeze.integrations.vllm_weights import engine_class
from squeeze.packing.deltas import Folder, Receiver, Stream, fetch, serve


def model(seed=0):
    return {"w": torch.randn(200, 100, generator=torch.Generator().manual_seed(seed)).bfloat16(), "b": torch.zeros(7)}


def step(weights, number):
    """Change a few values of each tensor."""
    for tensor in weights.values():
        tensor.view(-1)[number::97] += 1


def run(place, steps=5, **options):
    weights, folder = model(), Folder(place)
    stream = Stream(weights, **options)
    folder.publish(stream.snapshot())
    for number in range(steps):
        step(weights, number)
        folder.publish(stream.step(weights))
    return weights, folder, stream


def same(one, other):
    return all(torch.equal(one[name], tensor) for name, tensor in other.items())


@pytest.mark.parametrize("place", ["disk", "memory://streams/one"])
def test_a_folder_brings_a_receiver_up_to_date(tmp_path, place):
    weights, folder, stream = run(tmp_path / place if place == "disk" else place)
    others = model(3)
    receiver = Receiver(others)
    assert folder.update(receiver) == 6
    assert same(others, weights)
    step(weights, 50)
    folder.publish(stream.step(weights))
    assert (folder.update(receiver), folder.update(receiver)) == (1, 0)
    assert same(others, weights)
    with pytest.raises(SqueezeError, match="exists"):
        folder.publish(stream.since(5)[0])


def test_a_lost_patch_is_recovered_by_the_next_snapshot(tmp_path):
    weights, folder, stream = run(tmp_path, steps=2)
    others = model(3)
    receiver = Receiver(others)
    folder.update(receiver)
    for number in range(2, 4):
        step(weights, number)
        folder.publish(stream.step(weights))
    (tmp_path / "000000000003.patch").unlink()
    with pytest.raises(SqueezeError, match=r"messages after message 2 are missing: publish a snapshot$"):
        folder.update(receiver)
    folder.publish(stream.snapshot())
    assert folder.update(receiver) == 1
    assert same(others, weights)
    assert folder.prune() == 4
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["000000000004.snapshot"]
    late = model(4)
    assert Folder(tmp_path).update(Receiver(late)) == 1
    assert same(late, weights)


def test_messages_that_are_pruned_meanwhile_are_not_missed(tmp_path, monkeypatch):
    weights, folder, stream = run(tmp_path, steps=3, snapshot_every=4)
    others, pruned = model(3), []
    receiver = Receiver(others)
    receiver.apply((tmp_path / "000000000000.snapshot").read_bytes())
    step_by_step = receiver.apply

    def apply(message):
        if not pruned:
            step(weights, 3)
            folder.publish(stream.step(weights))
            pruned.append(Folder(tmp_path).prune())
        return step_by_step(message)

    monkeypatch.setattr(receiver, "apply", apply)
    assert folder.update(receiver) == 2
    assert pruned == [4]
    assert same(others, weights)


def test_pruning_passes_over_snapshots_that_cannot_be_read(tmp_path):
    run(tmp_path, steps=4, snapshot_every=2)
    (tmp_path / "000000000004.snapshot").write_bytes(b"")
    assert Folder(tmp_path).prune() == 2
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == ["000000000002.snapshot", "000000000003.patch", "000000000004.snapshot"]


def test_a_damaged_message_is_named_and_changes_nothing(tmp_path):
    weights, folder, stream = run(tmp_path, steps=1)
    others = model(3)
    receiver = Receiver(others)
    folder.update(receiver)
    before = {name: tensor.clone() for name, tensor in others.items()}
    step(weights, 9)
    path = folder.publish(stream.step(weights))
    whole = path.read_bytes()
    path.write_bytes(whole[:90] + bytes([whole[90] ^ 1]) + whole[91:])
    with pytest.raises(DamagedError, match=r"000000000002\.patch: the message is damaged"):
        folder.update(receiver)
    assert same(others, before)
    path.write_bytes(whole)
    folder.update(receiver)
    assert same(others, weights)


def test_a_server_answers_while_steps_go_on():
    weights, others = model(), model(3)
    stream, receiver = Stream(weights, keep=2), Receiver(others)
    with serve(stream) as url:
        assert fetch(url, receiver) == 1
        for number in range(2):
            step(weights, number)
            stream.step(weights)
        assert (fetch(url, receiver), fetch(url, receiver)) == (2, 0)
        assert same(others, weights)
        for number in range(3):
            step(weights, number)
            stream.step(weights)
        assert fetch(url, receiver) == 1
        assert same(others, weights)
        with pytest.raises(SqueezeError, match="the server answered 404"):
            fetch(f"{url}/x", receiver)
        with urllib.request.urlopen(f"{url}/since/5") as answer:
            assert answer.read() == b""
    with pytest.raises(SqueezeError, match="cannot be read"):
        fetch(url, receiver)
    with pytest.raises(SqueezeError, match="expected a URL of http or https, got file"):
        fetch("file:///etc/passwd", receiver)


def test_a_server_says_why_it_has_no_messages(monkeypatch):
    weights = model()
    stream = Stream(weights)

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("squeeze.packing.deltas.stream.coded_section", stop)
        with pytest.raises(KeyboardInterrupt):
            stream.step(weights)
    with serve(stream) as url, pytest.raises(SqueezeError, match="answered 503: the last step was interrupted"):
        fetch(url, Receiver(model(3)))


@pytest.mark.parametrize("url", ["http://[", "http://localhost/\xfc", "http://a b/", "http://localhost:x"])
def test_invalid_urls_are_refused(url):
    with pytest.raises(SqueezeError, match="cannot be read"):
        fetch(url, Receiver(model()))


def test_a_server_sends_a_snapshot_if_patches_are_larger():
    weights, others = model(), model(3)
    stream, receiver = Stream(weights, keep=100), Receiver(others)
    with serve(stream) as url:
        fetch(url, receiver)
        for number in range(8):
            weights["w"].copy_(torch.randn(200, 100, generator=torch.Generator().manual_seed(number)))
            stream.step(weights)
        assert len(stream.since(0)) == 1
        assert fetch(url, receiver) == 1
    assert same(others, weights)


@dataclass
class Base:
    """The part of vLLM's WeightTransferEngine that a worker uses (vllm/distributed/weight_transfer/base.py)."""

    config: object
    vllm_config: object
    device: object
    model: object

    def update_weights(self, update_info):
        self.receive_weights(self.update_info_cls(**update_info))


class Network(torch.nn.Module):
    """A model with the names of its checkpoint, whose `load_weights` notes what it was given."""

    def __init__(self):
        super().__init__()
        self.w, self.b = (torch.nn.Parameter(tensor) for tensor in model(3).values())
        self.loaded = []

    def load_weights(self, weights):
        for name, tensor in weights:
            self.loaded.append(name)
            self.get_parameter(name).data.copy_(tensor)


def engine_of(source, checkpoint=""):
    network = Network()
    engine = engine_class(Base)(None, None, "cpu", network)
    engine.init_transfer_engine(engine.init_info_cls(source=str(source), checkpoint=str(checkpoint)))
    return network, engine


def test_the_engine_for_vllm_changes_parameters_in_place(tmp_path):
    weights, _, _ = run(tmp_path)
    network, engine = engine_of(tmp_path)
    places = [parameter.data_ptr() for parameter in network.parameters()]
    engine.start_weight_update()
    engine.update_weights({"sequence": 5})
    engine.finish_weight_update()
    assert same(dict(network.named_parameters()), weights)
    assert [parameter.data_ptr() for parameter in network.parameters()] == places
    with pytest.raises(SqueezeError, match="expected message 6, the last one is 5"):
        engine.update_weights({"sequence": 6})
    engine.shutdown()


def test_the_engine_for_vllm_loads_changed_tensors_of_a_checkpoint(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "model").mkdir()
    save_file(model(3), tmp_path / "model/model.safetensors")
    weights = model()
    stream = Stream(weights)
    with serve(stream) as url:
        network, engine = engine_of(url, tmp_path / "model")
        engine.update_weights({})
        weights["w"][0, 0] += 1
        stream.step(weights)
        engine.update_weights({})
    assert network.loaded == ["b", "w", "w"]
    assert same(dict(network.named_parameters()), weights)


def test_the_engine_for_vllm_loads_what_changed_before_an_error(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "model").mkdir()
    save_file(model(3), tmp_path / "model/model.safetensors")
    weights, folder, stream = run(tmp_path / "stream", steps=0)
    network, engine = engine_of(tmp_path / "stream", tmp_path / "model")
    engine.update_weights({})
    weights["w"][0, 0] += 1
    folder.publish(stream.step(weights))
    weights["b"][0] += 1
    path = folder.publish(whole := stream.step(weights))
    path.write_bytes(whole[:-1])
    with pytest.raises(DamagedError):
        engine.update_weights({})
    path.write_bytes(whole)
    engine.update_weights({})
    assert network.loaded == ["b", "w", "b", "w"]
    assert same(dict(network.named_parameters()), weights)


def test_the_engine_for_vllm_needs_its_source(tmp_path):
    engine = engine_class(Base)(None, None, "cpu", Network())
    with pytest.raises(SqueezeError, match="call init_weight_transfer_engine first"):
        engine.update_weights({})
    with pytest.raises(SqueezeError, match=r"by squeeze\.packing\.deltas\.Stream"):
        engine.trainer_send_weights(iter(()), {})
