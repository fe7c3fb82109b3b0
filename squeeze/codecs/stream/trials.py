"""Trials of wrappers: whether their contents, coded by level 1, are clearly smaller than they are."""

import numpy as np

from squeeze.codecs.content import Content, Medium
from squeeze.codecs.jpeg.medium import find_images
from squeeze.codecs.parse.protocol import Found
from squeeze.codecs.stream import blocks, media, sampling

__all__ = ["Trials"]

_SMALL = 1 << 12  # bytes of content that is opened without a trial, if deflate made it smaller
_LEAST_SAMPLE, _MOST_SAMPLE = 1 << 15, 1 << 18
_COST = 8  # bytes of a wrapper in the tree
_REPEATS = 0.8  # share of the order-0 entropy below which deflate has found repeats, and other models find more
_PAYS = 0.95  # share of a wrapper's bytes below which its content must be coded
_PHOTO = b"\xff\xd8"
_OF_PHOTO = 0.8  # share of a JPEG image that its model needs
_ALIKE = 8  # trials of small wrappers of a kind that must agree before others are decided without one


class _Agreement:
    """The last trials of small wrappers of a kind, which had the same result.

    Attributes:
        pays: That result.
        trials: Their number.
        skipped: The wrappers since the last one that were decided without a trial.
    """

    def __init__(self) -> None:
        self.pays, self.trials, self.skipped = False, 0, 0


class Trials:
    """Decide whether wrappers pay, in the order of a block.

    A trial takes some milliseconds, and a list of checksums is thousands of wrappers of a hundred digits. So from some
    trials with one result on, as many small wrappers as there were trials are decided like them before the next trial.
    """

    def __init__(self) -> None:
        self._agreed: dict[int, _Agreement] = {}

    def __call__(self, data: np.ndarray, found: Found) -> bool:
        """Return whether a wrapper in uint8 `data` is to be opened.

        A part of larger contents decides. It is compared with the tokens that deflate has for it. Text of which deflate
        has found repeats is clearly smaller, without a trial. Text in another form is opened unless level 1, which
        gains the least from it, makes it clearly larger, such as genes that look like base64. Small images that deflate
        did not make smaller are decided by their model.
        """
        is_small = found.content.size <= _SMALL
        if found.opened and is_small:
            if found.size < 0.9 * found.content.size:
                return True
            if not found.content_kind:
                return False
        if found.content_kind and (medium := media.of_content(found.content_kind)):
            return _medium_pays(found, found.content_kind, medium)
        if found.opened and (photos := _size_of_photos(found.content)) > found.content.size // 2:
            return _OF_PHOTO * photos + found.content.size - photos < _PAYS * found.size
        return self._small_pays(data, found) if is_small else _pays(data, found)

    def _small_pays(self, data: np.ndarray, found: Found) -> bool:
        before = self._agreed.setdefault(found.kind, _Agreement())
        if before.trials >= _ALIKE and before.skipped < before.trials:
            before.skipped += 1
            return before.pays
        pays = _pays(data, found)
        before.trials, before.skipped = before.trials + 1 if pays == before.pays else 1, 0
        before.pays = pays
        return pays


def _pays(data: np.ndarray, found: Found) -> bool:
    content = found.content
    size = min(content.size, max(_LEAST_SAMPLE, min(content.size // 16, _MOST_SAMPLE)))
    start = (content.size - size) // 2
    sample = content[start : start + size]
    kind = _kind_of(sample)
    if found.opened:
        deflated = found.opened.stream.share_of(start, start + size) * found.size
        if kind.kind == "text" and deflated < _REPEATS * blocks.order0_size(sample):
            return True
        return sampling.coded_size(sample, kind) < _PAYS * deflated
    coded = sampling.coded_size(sample, kind)
    begin, end = (found.start + found.size * place // content.size for place in (start, start + size))
    return _PAYS * coded < sampling.coded_size(data[begin:end], Content("text")) - _COST


def _size_of_photos(content: np.ndarray) -> int:
    """Return the bytes of the JPEG images in a content that begins with one."""
    return sum(end - start for start, end in find_images(content.tobytes())) if content[:2].tobytes() == _PHOTO else 0


def _medium_pays(found: Found, kind: Content, medium: Medium) -> bool:
    """Return the same for the content of a medium, of which its own model at level 1 codes a part."""
    sample = medium.sample(found.content.size, kind, _MOST_SAMPLE)
    coded = medium.coded_size(found.content, sample, 1)
    start, end, _ = sample
    share = found.opened.stream.share_of(start, end) if found.opened else (end - start) / found.content.size
    return coded < _PAYS * share * found.size


def _kind_of(data: np.ndarray) -> Content:
    """Return the content of a few bytes, or of a sample of more: text or other."""
    return Content("text" if blocks.is_text(data[:_SMALL]) else "other")
