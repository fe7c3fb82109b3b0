"""Imitate a GPU, as far as timing and recording need: the parts of torch.cuda that are called."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

NAME = "a GPU that is not there"


class Stream:
    """A stream whose calls wait for nothing."""

    current: "Stream"

    def wait_stream(self, other):
        assert isinstance(other, Stream)


class Graph:
    """A graph that only counts how often it is replayed."""

    made: list

    def __init__(self):
        self.replayed = 0
        Graph.made.append(self)

    def replay(self):
        self.replayed += 1


class Event:
    """An event of a clock that counts replays of the latest graph. Each replay takes a fixed number of milliseconds."""

    milliseconds = 8.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Graph.made[-1].replayed * self.milliseconds

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return later.at - self.at


class Switched:
    """A context like torch.cuda.stream, in which another stream is current."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        self.before, Stream.current = Stream.current, self.stream

    def __exit__(self, *error):
        Stream.current = self.before


def install(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Replace torch.cuda. Return a list to which each device is added when it becomes current."""
    current, empty = [], torch.empty

    @contextmanager
    def graph(graph, stream=None, capture_error_mode="global"):
        """Record like torch.cuda.graph, which remains on its stream if recording fails. Its own stream has one device
        only."""
        assert isinstance(graph, Graph) and capture_error_mode == "thread_local"
        assert isinstance(stream, Stream) and stream is not Stream.current
        apart = Switched(stream)
        apart.__enter__()
        yield
        apart.__exit__()

    def on_the_processor(*shape, device=None, **options):
        return empty(*shape, **options)

    names = {
        **{"Stream": Stream, "CUDAGraph": Graph, "Event": Event, "graph": graph, "stream": Switched},
        **{"current_stream": lambda device=None: Stream.current, "is_current_stream_capturing": lambda: False},
        **{"device": lambda device: current.append(device) or nullcontext(), "get_device_name": lambda device: NAME},
    }
    for name, value in names.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "empty", on_the_processor)
    monkeypatch.setattr(Graph, "made", [], raising=False)
    monkeypatch.setattr(Stream, "current", Stream(), raising=False)
    return current
