"""What compressing, restoring and salvaging report."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Totals:
    """Bytes read and written; `damage` says what a salvage could not restore."""

    raw: int
    coded: int
    damage: tuple[str, ...] = ()
