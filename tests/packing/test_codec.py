"""Single tensors and streams of them: into the caller's memory, without the GIL, and never damaged in silence."""

import io
import os
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from squeeze.errors import DamagedError, FormatError, LimitError, OptionError, SqueezeError, TruncatedError
from squeeze.packing import codec
from squeeze.system.limits import Limits

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int8, torch.int64, torch.bool]


def tensor(dtype=torch.bfloat16, shape=(60, 70)) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(shape).mul(3).to(dtype)


def same(one, other) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(
        one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8)
    )


@pytest.mark.parametrize("level", ["runtime", "fast", "archive"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_come_back(dtype, level):
    for shape in [(60, 70), (), (1,), (3, 5, 7)]:
        values = tensor(dtype, shape)
        data = codec.encode(values, level=level, threads=2, name="x")
        assert data.size <= codec.room_for(values, "x")
        assert same(codec.decode(data, threads=2), values)
        assert same(codec.decode(data.tobytes() + b"more"), values)
    assert same(codec.decode(codec.encode(tensor(dtype).t(), level=level)), tensor(dtype).t())
    assert same(codec.decode(codec.encode(tensor(dtype, (0, 4)))), tensor(dtype, (0, 4)))


def test_results_go_to_the_callers_memory():
    values = tensor(shape=(700, 800))
    room = bytearray(codec.room_for(values) + 100)
    data = codec.encode(values, out=room)
    assert data.size < 0.8 * values.nbytes
    assert bytes(room[: data.size]) == data.tobytes() == codec.encode(values).tobytes()
    assert not any(room[data.size :])
    out = torch.zeros_like(values)
    place = out.data_ptr()
    assert codec.decode(room, out=out).data_ptr() == place
    assert same(out, values)
    with pytest.raises(OptionError, match="expected a contiguous writable buffer of at least"):
        codec.encode(values, out=bytearray(10))
    with pytest.raises(OptionError, match="expected a contiguous writable buffer"):
        codec.encode(values, out=bytes(len(room)))
    for other in (out.float(), out.t(), out[:-1]):
        with pytest.raises(OptionError, match=r"expected a contiguous buffer of torch\.bfloat16 \[700, 800\]"):
            codec.decode(data, out=other)
    with pytest.raises(OptionError, match="expected a dense tensor on the CPU"):
        codec.encode(torch.empty(3, dtype=torch.complex128))
    with pytest.raises(SqueezeError, match="level"):
        codec.encode(values, level="other")


@pytest.mark.parametrize("as_buffer", [np.asarray, memoryview])
def test_memory_that_is_not_contiguous_is_refused(as_buffer):
    values = tensor()
    room = np.zeros((2 * codec.room_for(values), 2), np.uint8)[:, 0]
    with pytest.raises(OptionError, match="expected a contiguous writable buffer"):
        codec.encode(values, out=as_buffer(room))
    wide = np.zeros((100, codec.room_for(values)), np.uint8)[:, :-1]  # whose bytes in a row are a copy
    with pytest.raises(OptionError, match="expected a contiguous writable buffer"):
        codec.encode(values, out=as_buffer(wide))


def test_lazy_signs_are_part_of_the_values_and_sparse_tensors_are_refused():
    values = torch.randn(30, dtype=torch.complex64)
    for lazy in (values.conj(), values.conj().imag):
        assert torch.equal(codec.decode(codec.encode(lazy)), lazy)
    for other in (torch.eye(3).to_sparse(), torch.empty((), dtype=torch.float4_e2m1fn_x2)):
        with pytest.raises(OptionError, match="expected a dense tensor on the CPU"):
            codec.encode(other)


def test_a_stream_of_tensors_through_a_pipe():
    tensors = {f"layer.{n}": tensor(dtype, (40, 10 + n)) for n, dtype in enumerate(DTYPES)}
    source, sink = os.pipe()

    def send():
        with os.fdopen(sink, "wb", buffering=0) as file, codec.TensorWriter(file) as writer:
            for name, values in tensors.items():
                writer.write(name, values)

    sender = threading.Thread(target=send)
    sender.start()
    with os.fdopen(source, "rb", buffering=0) as file:
        found = dict(codec.decode_stream(file, threads=2))
    sender.join()
    assert found.keys() == tensors.keys()
    assert all(same(found[name], tensors[name]) for name in tensors)


def streamed(count=3) -> bytes:
    file = io.BytesIO()
    with codec.TensorWriter(file) as writer:
        for n in range(count):
            writer.write(str(n), tensor(shape=(20, 30)))
    return file.getvalue()


def test_a_stream_that_is_cut_off_or_lacks_a_tensor():
    data = streamed()
    one = codec.encode(tensor(shape=(20, 30)), name="0").size
    for length in (0, 5, one, one + 7, len(data) - 1, len(data) - 16):
        with pytest.raises(TruncatedError, match="cut off"):
            list(codec.decode_stream(io.BytesIO(data[:length])))
    with pytest.raises(DamagedError, match="tensors are missing"):
        list(codec.decode_stream(io.BytesIO(data[one:])))
    file = io.BytesIO()
    with pytest.raises(ZeroDivisionError), codec.TensorWriter(file) as writer:
        writer.write("a", tensor() * (1 // 0))
    with pytest.raises(TruncatedError):
        list(codec.decode_stream(io.BytesIO(file.getvalue())))
    with pytest.raises(FormatError, match="not a coded tensor"):
        codec.decode(b"x" * 100)
    with pytest.raises(FormatError, match="the end of a stream"):
        codec.decode(streamed(0))
    with pytest.raises(LimitError):
        list(codec.decode_stream(io.BytesIO(data), limits=Limits(output=2000)))


@given(st.integers(0, 1200), st.integers(1, 255))
def test_a_changed_byte_is_an_error_or_changes_nothing(place, change):
    values = tensor(shape=(20, 30))
    data = bytearray(codec.encode(values, name="w"))
    data[place % len(data)] ^= change
    try:
        found = codec.decode(data, limits=Limits(memory=1 << 28))
    except SqueezeError:
        return
    assert torch.equal(found.view(-1), values.view(-1))  # a name or the padding of the payload


@pytest.mark.parametrize("act", ["encode", "decode"])
def test_other_threads_run_during_a_call(act):
    values = tensor(shape=(2000, 1000))
    data = codec.encode(values)
    codec.decode(data)  # compiled
    turns, ready, done = [0], threading.Event(), threading.Event()

    def other():
        ready.set()
        while not done.is_set():
            turns[0] += 1
            time.sleep(0)  # gives the GIL back

    thread, interval = threading.Thread(target=other), sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no thread loses the GIL before it gives it back
    try:
        thread.start()
        ready.wait()
        during = 0
        for _ in range(300):  # a busy machine may wake the other thread too late for a call
            before = turns[0]
            found = codec.encode(values) if act == "encode" else codec.decode(data)
            during = turns[0] - before
            if during:
                break
    finally:
        done.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert during > 0
    assert np.array_equal(found, data) if act == "encode" else same(found, values)
