"""Weights as a stream of exact differences, from a trainer to those who use them.

`Stream` makes a message of each step, `Receiver` applies messages in place. `Folder` keeps messages in a folder or at a
URL, `serve` and `fetch` pass them over HTTP.

    stream = Stream(model.state_dict())
    receiver = Receiver(other.state_dict())
    receiver.apply(stream.snapshot())
    receiver.apply(stream.step(model.state_dict()))
"""

from squeeze.packing.deltas.folder import Folder
from squeeze.packing.deltas.http import fetch, serve
from squeeze.packing.deltas.receiver import Receiver
from squeeze.packing.deltas.stream import Stream

__all__ = ["Folder", "Receiver", "Stream", "fetch", "serve"]
