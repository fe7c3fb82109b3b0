"""The blocks of JPEG that an image was decoded from, found in its pixels.

Its luminance and its colour differences each have a grid of blocks with quantisation steps (steps.py), and
coefficients that make the pixels (fitting.py). Colour differences were mostly made larger from fewer pixels
(sampling.py): blocks are fitted to these, and these to what the blocks make, in turn.
"""

import numpy as np

from squeeze.codecs.image.blocks import Plane, draw
from squeeze.codecs.image.fitting import fit
from squeeze.codecs.image.layout import LEAST_SIDE
from squeeze.codecs.image.sampling import WHOLE, Sampling, find_sampling, reduce, solve
from squeeze.codecs.image.steps import coefficients, find_grid, noise_of, sample, steps_of
from squeeze.codecs.jpeg.transform import FINE

__all__ = ["find_planes", "refine"]

_CHANGES, _FEW_CHANGES = 32, 8  # of coefficients of a block
_LESS_EXACT = 1.3  # by as much rounding of a smaller plane moves its coefficients more, squared, if it was found
_REPEATS = 3  # of finding the plane from blocks and blocks from the plane
_LEAST_KNOWN = 0.25  # share of pixels
_LEAST_SAVED = 32  # bits of a block that its steps save


def _known_of(is_known: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Return which pixels of a smaller plane make only known ones, bool."""
    height, width = sampling.small(*is_known.shape)
    around = (
        (sampling.top, height * sampling.down - sampling.top - is_known.shape[0]),
        (sampling.left, width * sampling.across - sampling.left - is_known.shape[1]),
    )
    cells = np.pad(is_known, around, constant_values=True).reshape(height, sampling.down, width, sampling.across)
    return np.asarray(cells.all(axis=(1, 3)))


def _find_group(planes: list[np.ndarray], is_known: np.ndarray, sampling: Sampling) -> list[Plane] | None:
    """Return the blocks that make planes with the same steps, or None if these would save little."""
    smalls, of_small = [solve(plane, sampling) for plane in planes], _known_of(is_known, sampling)
    place = find_grid([sample(small) for small in smalls])
    steps = steps_of(smalls, of_small, place, noise_of(sampling))
    if sum(int(step).bit_length() - 1 for step in steps) < _LEAST_SAVED:
        return None
    top, left = -place[0] % 8, -place[1] % 8
    first = [Plane(steps, top, left, sampling, np.zeros((0, 64), np.int16)) for _ in planes]
    if sampling == WHOLE:
        return [fit(plane, is_known, found, _CHANGES) for plane, found in zip(planes, first, strict=True)]
    around = ((top, -(of_small.shape[0] + top) % 8), (left, -(of_small.shape[1] + left) % 8))
    for number, small in enumerate(smalls):
        values = coefficients(np.pad(small, around, "edge"), 0, 0)
        first[number] = first[number]._replace(coefficients=np.rint(values / (FINE * steps)).astype(np.int16))
    best = found = first
    least = _wrong_of(found, planes, is_known)
    for _ in range(_REPEATS):
        found = _refined(found, planes, is_known)
        wrong = _wrong_of(found, planes, is_known)
        if wrong < least:
            best, least = found, wrong
    return best


def _refined(group: list[Plane], planes: list[np.ndarray], is_known: np.ndarray) -> list[Plane]:
    """Return the blocks of planes by what they make: that is changed until it makes the planes."""
    sampling = group[0].sampling
    of_small, most = _known_of(is_known, sampling), _CHANGES
    drawn = [draw(found._replace(sampling=WHOLE), of_small.shape) for found in group]
    exact = [reduce(plane, is_known, sampling, first) for plane, first in zip(planes, drawn, strict=True)]
    noise = noise_of(WHOLE) * (1 if sampling == WHOLE else _LESS_EXACT)
    steps = steps_of(exact, of_small, (-group[0].top % 8, -group[0].left % 8), noise)
    if sampling != WHOLE:
        of_small, most = np.ones(of_small.shape, np.bool_), _FEW_CHANGES
    if not np.array_equal(steps, group[0].steps):
        group = [found._replace(steps=steps, coefficients=np.zeros((0, 64), np.int16)) for found in group]
    return [fit(small, of_small, found, most) for small, found in zip(exact, group, strict=True)]


def _wrong_of(group: list[Plane], planes: list[np.ndarray], is_known: np.ndarray) -> int:
    """Return how many of the known pixels blocks do not make."""
    pairs = zip(group, planes, strict=True)
    return sum(int(np.count_nonzero((draw(found, plane.shape) != plane) & is_known)) for found, plane in pairs)


def find_planes(pixels: list[np.ndarray], is_known: np.ndarray) -> list[Plane] | None:
    """Return the blocks that an image was decoded from, or None if it was not.

    Args:
        pixels: its luminance and colour differences, or its grey values: uint8 [height, width].
        is_known: bool [height, width]: where these are what the decoder had.
    """
    if min(pixels[0].shape) < LEAST_SIDE or is_known.mean() < _LEAST_KNOWN:
        return None
    samples = [sample(plane) for plane in (*pixels, is_known)]
    luminance = _find_group(pixels[:1], is_known, WHOLE)
    if luminance is None or len(pixels) == 1:
        return luminance
    colours = _find_group(pixels[1:], is_known, find_sampling(samples[1:-1], samples[-1]))
    return colours and luminance + colours


def refine(planes: list[Plane], pixels: list[np.ndarray], is_known: np.ndarray) -> list[Plane]:
    """Return better blocks for planes whose pixels are known better by now; see find_planes."""
    refined = _refined(planes[:1], pixels[:1], is_known)
    return refined + _refined(planes[1:], pixels[1:], is_known) if len(planes) > 1 else refined
