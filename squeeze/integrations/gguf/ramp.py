"""Llama 3's rotary scaling read off the divisors of angles, which is all that a GGUF file has of it.

With s the share of an angle f that is kept, f (s + (1 - s) / factor), s is a f + b between 0 and 1: a line through what
is neither kept nor divided whole. Of low, high and trained context only the ratios matter: one of them is free.
"""

from collections.abc import Sequence
from math import pi

__all__ = ["ramp_of"]

_ALIKE = 1e-9  # divisors are float32, and angles float64
_NICE = 1e-4  # how near to whole numbers a trained context is taken as one


def ramp_of(angles: Sequence[float], divisors: Sequence[float]) -> list[tuple[float, float, float, float]]:
    """Settings (factor, low, high, trained context) that may give these divisors of unscaled angles, the likeliest
    first; none where they are of another kind. angles: largest first."""
    factor = max(divisors)
    if min(divisors) < 1 - _ALIKE or factor <= min(divisors) + _ALIKE:
        return []
    shares = [(1 / divisor - 1 / factor) / (1 - 1 / factor) for divisor in divisors]
    slope, lift = _line(list(zip(angles, shares, strict=True)))
    if slope <= 0 or lift >= 0:  # angles down to 0 are divided
        return []
    low, width = 1.0, -1 / lift  # of which the context is in units of low
    context = 2 * pi * slope * width
    whole = max(round(context), 1)
    exact = float(f"{factor:.9g}"), whole / context, whole / context * (1 + width), float(whole)
    nice = float(f"{factor:.6g}"), low, float(f"{1 + width:.6g}"), float(whole)
    return [nice, exact] if abs(whole / context - 1) < _NICE else [exact]


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Slope and height at 0 of shares over angles, from (angle, share), largest angle first."""
    between = [(angle, share) for angle, share in points if _ALIKE < share < 1 - _ALIKE]
    kept = [angle for angle, share in points if share >= 1 - _ALIKE]
    divided = [angle for angle, share in points if share <= _ALIKE]
    if len(between) > 1:
        (most, above), (least, below) = between[0], between[-1]
        slope = (above - below) / (most - least)
        return slope, below - slope * least
    ends = [(kept[-1], 1.0)] if kept else []
    ends += [(divided[0], 0.0)] if divided else []
    if not between:
        (most, _), (least, _) = ends
        return 1 / (most - least), -least / (most - least)
    angle, share = between[0]
    slope = max((other - share) / (end - angle) for end, other in ends)
    return slope, share - slope * angle
