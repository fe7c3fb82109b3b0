"""How long a run over a corpus takes on a cluster, by what one call and one file cost the machine that drives it.

Coding is spread over all processors: raw bytes by seconds a byte. The driver lists, plans, submits and notes on one
processor of its own. Calls are some 30 s long, so that processors wait half a call for the last one in the end. Storage
is asked for each file: to read it, to look for its output, and to write that.
"""

from dataclasses import dataclass

__all__ = ["CALL_SECONDS", "Corpus", "Costs", "Prediction", "predict"]

CALL_SECONDS = 30.0
_FILE_SECONDS = 0.01  # of a worker, beside coding
_MOST_FILES = 500  # of a call
_WRITES = (
    3500  # requests a second for each prefix that S3 promises to take (docs.aws.amazon.com, "Optimizing performance")
)
_JOINED = 100e6  # bytes a second that one worker reads, compares and writes while it puts parts together


@dataclass(frozen=True)
class Costs:
    """Seconds of the driver's processor for a call and for a file, and until a worker's first call has begun."""

    call: float
    file: float
    start: float


@dataclass(frozen=True)
class Corpus:
    """seconds: of one worker for a raw byte, proof included."""

    raw: float
    file: float
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """hours: all in all. driver, writes: share of what it can do that is asked of the driver, and of one prefix. tail:
    seconds at the end in which not all work. breaks: what ends first as workers are added; at: at how many."""

    hours: float
    calls: float
    driver: float
    writes: float
    tail: float
    breaks: str
    at: float


def predict(corpus: Corpus, workers: int, costs: Costs) -> Prediction:
    files = corpus.raw / corpus.file
    one = corpus.file * corpus.seconds + _FILE_SECONDS  # seconds of a worker for a file
    per_call = min(max(CALL_SECONDS / one, 1), _MOST_FILES) if one < 2 * CALL_SECONDS else CALL_SECONDS / one
    calls = files / per_call
    coding = files * one / workers
    driver = calls * costs.call + files * costs.file
    writes = files / _WRITES
    joined = corpus.file / _JOINED if per_call < 1 else 0
    tail = min(CALL_SECONDS, per_call * one) / 2 + joined
    shares = {"the driver": driver / coding, "requests to one prefix": writes / coding}
    first = max(shares, key=lambda name: shares[name])
    hours = (costs.start + max(coding, driver, writes) + tail) / 3600
    return Prediction(
        hours, calls, shares["the driver"], shares["requests to one prefix"], tail, first, workers / shares[first]
    )
