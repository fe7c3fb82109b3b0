"""A stream of weights: the receiver has exactly the sender's weights after each message, or the ones before."""

import numpy as np
import pytest
import torch

from squeeze.errors import DamagedError, FormatError, OptionError, SqueezeError
from squeeze.packing.deltas import Receiver, Stream
from squeeze.packing.deltas.message import Message

DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2fnuz,
    torch.int64,
    torch.complex64,
]


def weights(dtype=torch.bfloat16, seed=0):
    """Make tensors of one, several and no values, and one that spans parts and blocks."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"large": (700, 400), "odd": (333,), "one": (), "none": (0, 3), "three": (3,), "transposed": (64, 40)}
    made = {name: torch.randn(shape, generator=generator).mul(30).to(dtype) for name, shape in shapes.items()}
    return made | {"transposed": made["transposed"].t()}


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor


def same(one, other):
    return all(torch.equal(raw(one[name]), raw(tensor)) for name, tensor in other.items())


def changed(tensors, share, seed=1):
    """Return copies with a share of the values at random places changed, most of them by one in the last place."""
    generator, found = np.random.default_rng(seed), {}
    for name, tensor in tensors.items():
        if not tensor.numel():
            found[name] = tensor
            continue
        data = raw(tensor).numpy().copy()
        item = tensor.element_size()
        words = data.view(f"u{min(item, 8)}")
        touched = generator.random(words.size) < share
        words[touched] += generator.choice(np.array([1, 1, 1, 3, 77, 250], words.dtype), int(touched.sum()))
        found[name] = torch.from_numpy(data).view(tensor.dtype).view(tensor.shape)
    return found


def pair(dtype=torch.bfloat16, **options):
    """Return weights, a stream of them, those of a receiver, and that receiver after the first snapshot."""
    first = weights(dtype)
    stream, others = Stream(first, **options), weights(dtype, seed=9)
    receiver = Receiver(others)
    receiver.apply(stream.snapshot())
    return first, stream, others, receiver


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_receiver_has_the_weights_of_every_step(dtype):
    now, stream, others, receiver = pair(dtype)
    assert same(others, now)
    for step, share in enumerate((0.02, 0, 0.001, 0.2, 0.9, 1.0, 0.02)):
        now = changed(now, share, seed=step)
        assert receiver.apply(stream.step(now)) == step + 1
        assert same(others, now)
        receiver.verify()


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_make_the_same_messages(threads):
    first = {"w": torch.randn(3000, 1000, generator=torch.Generator().manual_seed(1)).bfloat16()}
    stream, others = Stream(first, threads=threads), {"w": torch.zeros(3000, 1000, dtype=torch.bfloat16)}
    receiver = Receiver(others, threads=threads)
    receiver.apply(stream.snapshot())
    message = stream.step(now := changed(first, 0.02))
    receiver.apply(message)
    assert same(others, now)
    assert message == Stream(first).step(now)


def test_a_patch_of_two_percent_takes_less_than_three():
    first = {"w": torch.randn(1000, 1000, generator=torch.Generator().manual_seed(1)).mul(0.02).bfloat16()}
    stream, bits = Stream(first), first["w"].view(torch.int16)
    bits += (torch.rand(bits.shape, generator=torch.Generator().manual_seed(2)) < 0.02).short()
    assert len(stream.step(first)) < 0.015 * stream.size


def test_gaps_and_steps_of_any_length():
    first = {"w": torch.zeros(300_000, dtype=torch.bfloat16), "x": torch.zeros(300_000, dtype=torch.int64)}
    stream, others = Stream(first), {name: tensor.clone() for name, tensor in first.items()}
    receiver = Receiver(others)
    receiver.apply(stream.snapshot())
    for name, value in (("w", -1.5), ("x", -(1 << 62)), ("x", 254), ("x", -128)):
        first[name][[0, 1, 255, 256, 511, 32_767, 32_768, 299_999]] = value
        receiver.apply(stream.step(first))
        assert same(others, first)


def test_a_snapshot_comes_every_n_messages():
    now, stream, others, receiver = pair(snapshot_every=3)
    kinds = []
    for step in range(6):
        now = changed(now, 0.05, step)
        message = stream.step(now)
        kinds.append(Message.sequence_of(message)[1])
        receiver.apply(message)
    assert kinds == [False, False, True] * 2
    assert same(others, now)


def test_a_receiver_that_lost_messages_gets_them_or_a_snapshot():
    now, stream, others, receiver = pair(keep=3)
    for step in range(5):
        stream.step(now := changed(now, 0.05, step))
    late = Receiver(weights(seed=4), sequence=None)
    assert [Message.sequence_of(one) for one in stream.since(2)] == [(3, False), (4, False), (5, False)]
    assert [Message.sequence_of(one) for one in stream.since(receiver.sequence)] == [(5, True)]
    assert stream.since(5) == []
    for known in (receiver, late):
        for message in stream.since(known.sequence):
            known.apply(message)
        assert known.sequence == 5
    assert same(others, now)


def test_a_message_out_of_order_changes_nothing():
    now, stream, others, receiver = pair()
    one = stream.step(after := changed(now, 0.05, 1))
    two = stream.step(changed(after, 0.05, 2))
    with pytest.raises(
        SqueezeError, match=r"^message 2 is not the next one: the receiver has 0; send those after it, or"
    ):
        receiver.apply(two)
    assert same(others, now)
    receiver.apply(one)
    with pytest.raises(SqueezeError, match=r"^message 1 is not the next one: the receiver has 1"):
        receiver.apply(one)
    assert same(others, after)
    with pytest.raises(SqueezeError, match=r"^message 1 is a patch, and the receiver has no state: send a snapshot$"):
        Receiver(weights()).apply(one)


def test_a_message_of_another_model_or_state_changes_nothing():
    now, _, others, receiver = pair()
    other = Stream({"w": torch.zeros(3)})
    with pytest.raises(SqueezeError, match="of another model"):
        receiver.apply(other.snapshot())
    fork = Stream(weights(seed=5))
    with pytest.raises(
        SqueezeError, match=r"^message 1 is a patch of other weights than those of message 0: send a snap"
    ):
        receiver.apply(fork.step(weights(seed=6)))
    assert same(others, now)
    assert receiver.sequence == 0


def test_a_flipped_bit_changes_nothing():
    now, stream, others, receiver = pair()
    message = stream.step(after := changed(now, 0.05))
    generator = np.random.default_rng(0)
    for place in [*range(64), *generator.integers(64, len(message), 60)]:
        hurt = bytearray(message)
        hurt[place] ^= 1 << int(generator.integers(8))
        with pytest.raises(FormatError):
            receiver.apply(bytes(hurt))
    for size in (0, 3, 63, 64, len(message) - 1):
        with pytest.raises(FormatError):
            receiver.apply(message[:size])
    assert same(others, now)
    receiver.apply(message)
    assert same(others, after)


def test_invalid_content_with_a_valid_hash_changes_nothing():
    """Refuse a message that was made wrong, not damaged on its way, by its own checks or the last checksum."""
    now, stream, others, receiver = pair()
    first = stream.snapshot()
    good = Message.parse(stream.step(after := changed(now, 0.05)))
    generator, body = np.random.default_rng(3), bytes(good.body)
    for _ in range(300):
        hurt, described = bytearray(body), {**good.described}
        hurt[generator.integers(len(hurt))] ^= 1 << int(generator.integers(8))
        if generator.random() < 0.3:
            sections = [list(pair) for pair in described["sections"]]
            sections[generator.integers(3)][generator.integers(2)] += int(generator.integers(-9, 9))
            described["sections"] = sections
        bad = Message(good.kind, 1, good.model, good.before, good.after, described, bytes(hurt)).to_bytes()
        try:
            receiver.apply(bad)
        except DamagedError:
            assert receiver.sequence == 0
            assert same(others, now)
        else:  # a bit that no decoder reads
            assert same(others, after)
            receiver.apply(first)


@pytest.mark.parametrize(
    "dense",
    [[[]], [[[]]], [["0"]], [[9, "stored", 0]], [[-1, "stored", 0]], [[0, "stored"]], [[1, "ulps", 0]], [[1, "x", 0]],
     [[1, "grid+rans", 0]], [[1, "blocks+rans", 0]], [[1, "shared+stored", 0]], [[1, "stored", 0]] * 2],
    ids=str,
)  # fmt: skip
def test_dense_tensors_that_cannot_be_are_refused(dense):
    now, stream, others, receiver = pair(torch.int64)
    good = Message.parse(stream.step(changed(now, 0.05)))
    described = {**good.described, "dense": dense}
    with pytest.raises(DamagedError):
        receiver.apply(Message(good.kind, 1, good.model, good.before, good.after, described, good.body).to_bytes())
    assert receiver.sequence == 0
    assert same(others, now)


def test_weights_that_something_else_changed_are_noticed():
    now, stream, others, receiver = pair()
    others["large"][3, 4] += 1
    with pytest.raises(DamagedError, match=r"^the weights are not those of the last message: ask for a snapshot$"):
        receiver.verify()
    with pytest.raises(SqueezeError, match="send a snapshot"):
        receiver.apply(stream.step(now))
    receiver.apply(stream.snapshot())
    assert same(others, now)


def test_an_interrupted_snapshot_is_asked_for_again():
    now, stream, others, receiver = pair()
    good = Message.parse(stream.snapshot())
    bad = Message(good.kind, 0, good.model, 0, good.after ^ 1, good.described, bytes(good.body)).to_bytes()
    with pytest.raises(DamagedError, match="ask for another one"):
        receiver.apply(bad)
    assert receiver.sequence is None
    receiver.apply(stream.since(None)[0])
    assert same(others, now)


def test_an_interrupted_step_is_followed_by_a_snapshot(monkeypatch):
    now, stream, others, receiver = pair()

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("squeeze.packing.deltas.stream.coded_section", stop)
        with pytest.raises(KeyboardInterrupt):
            stream.step(changed(now, 0.05))
    with pytest.raises(SqueezeError, match="the last step was interrupted"):
        stream.snapshot()
    message = stream.step(after := changed(now, 0.06))
    assert Message.sequence_of(message) == (1, True)
    receiver.apply(message)
    assert same(others, after)


def test_other_tensors_are_refused():
    stream = Stream(weights())
    for other in ({}, {**weights(), "one": torch.zeros(2)}, {**weights(), "odd": torch.zeros(333)}):
        with pytest.raises(OptionError, match="first step"):
            stream.step(other)
    with pytest.raises(OptionError, match="keep must be at least 0"):
        Stream(weights(), keep=-1)
    with pytest.raises(OptionError, match="expected a dtype of safetensors"):
        Stream({"w": torch.zeros(2, dtype=torch.complex128)})


@pytest.mark.cuda
def test_weights_of_a_gpu_follow():
    first = {name: tensor.cuda() for name, tensor in weights().items()}
    stream, others = Stream(first), {name: tensor.cuda() for name, tensor in weights(seed=9).items()}
    receiver = Receiver(others)
    receiver.apply(stream.snapshot())
    now = {name: tensor.cuda() for name, tensor in changed({k: v.cpu() for k, v in first.items()}, 0.02).items()}
    receiver.apply(stream.step(now))
    assert same({k: v.cpu() for k, v in others.items()}, {k: v.cpu() for k, v in now.items()})
    receiver.verify()
