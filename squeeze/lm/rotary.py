"""Rotary angles per position, the same float64 everywhere: computed with 50 decimal digits, then rounded."""

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

BETA_FAST, BETA_SLOW = 32.0, 1.0  # rotations over the trained context: YaRN's defaults
_DIGITS = Context(prec=50, rounding=ROUND_HALF_EVEN)
_MAX_HEAD_SIZE = 512  # products of a query and a key are one 32-bit sum: 512 * 127 * 32767 < 2^31
_PI = Decimal("3.14159265358979323846264338327950288419716939937510")


def plain(base: float, head_size: int) -> tuple[float, ...]:
    """Return base^(-2i / head_size) for each i below head_size / 2."""
    return _rounded(_plain(base, head_size))


def linear(base: float, head_size: int, factor: float) -> tuple[float, ...]:
    """Return angles divided by `factor` (position interpolation, Chen et al. 2023, arXiv:2306.15595).

    Args:
        base: of the angles.
        head_size: numbers of a head.
        factor: of the context's extension.
    """
    with localcontext(_DIGITS):
        return _rounded([f / Decimal(factor) for f in _plain(base, head_size)])


def divided(base: float, head_size: int, factors: list[float]) -> tuple[float, ...]:
    """Return angles with a divisor for each, as GGUF files list them.

    Args:
        base: of the angles.
        head_size: numbers of a head.
        factors: a divisor for each angle.
    """
    with localcontext(_DIGITS):
        return _rounded([f / Decimal(d) for f, d in zip(_plain(base, head_size), factors, strict=True)])


def llama3(
    base: float, head_size: int, factor: float, low: float, high: float, trained_context: float
) -> tuple[float, ...]:
    """Return the angles of Llama 3.1.

    Wavelengths above trained_context / low are divided by `factor`, those below trained_context / high are kept, and
    those between are blended.

    Args:
        base: of the angles.
        head_size: numbers of a head.
        factor: of the context's extension.
        low: low_freq_factor.
        high: high_freq_factor.
        trained_context: original length in tokens.
    """
    with localcontext(_DIGITS):
        out = []
        for f in _plain(base, head_size):
            turns = Decimal(trained_context) * f / (2 * _PI)  # rotations over the trained context
            smooth = (turns - Decimal(low)) / (Decimal(high) - Decimal(low))
            smooth = min(max(smooth, Decimal(0)), Decimal(1))
            out.append((1 - smooth) * f / Decimal(factor) + smooth * f)
        return _rounded(out)


def yarn(
    base: float,
    head_size: int,
    factor: float,
    trained_context: float,
    beta_fast: float = BETA_FAST,
    beta_slow: float = BETA_SLOW,
    whole_dimensions: bool = True,
) -> tuple[float, ...]:
    """Return the angles of YaRN (Peng et al. 2023, arXiv:2309.00071).

    Dimensions with more than `beta_fast` rotations over the trained context are kept, those with less than `beta_slow`
    are divided by `factor`, with a linear ramp between.

    Args:
        base: of the angles.
        head_size: numbers of a head.
        factor: of the context's extension.
        trained_context: original length in tokens.
        beta_fast: rotations.
        beta_slow: rotations.
        whole_dimensions: round the ends of the ramp to whole dimensions.
    """
    with localcontext(_DIGITS):

        def dimension(turns: float) -> Decimal:
            wavelength = Decimal(trained_context) / (Decimal(turns) * 2 * _PI)
            return head_size * wavelength.ln() / (2 * Decimal(base).ln())

        low, high = dimension(beta_fast), dimension(beta_slow)
        if whole_dimensions:
            low, high = Decimal(math.floor(low)), Decimal(math.ceil(high))
        low, high = max(low, Decimal(0)), min(high, Decimal(head_size - 1))
        width = high - low if high != low else Decimal("0.001")
        out = []
        for i, f in enumerate(_plain(base, head_size)):
            ramp = min(max((i - low) / width, Decimal(0)), Decimal(1))
            out.append(f / Decimal(factor) * ramp + f * (1 - ramp))
        return _rounded(out)


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """Return 0.1 mscale ln(factor) + 1, YaRN's factor of cosines and sines."""
    if factor <= 1:
        return 1.0
    with localcontext(_DIGITS):
        return float(Decimal(mscale) * Decimal(factor).ln() / 10 + 1)


def _plain(base: float, head_size: int) -> list[Decimal]:
    if not 0 < head_size <= _MAX_HEAD_SIZE:
        raise ValueError(f"attention heads of size {head_size}")
    with localcontext(_DIGITS):
        logarithm = Decimal(base).ln()
        return [(-logarithm * 2 * i / head_size).exp() for i in range(head_size // 2)]


def _rounded(angles: list[Decimal]) -> tuple[float, ...]:
    return tuple(float(angle) for angle in angles)
