"""Figures with their units, as tables and drawings show them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Return a duration in µs, ms, s or min."""
    for unit, scale, limit in (("µs", 1e6, 1e-3), ("ms", 1e3, 1.0), ("s", 1.0, 600.0)):
        if value < limit:
            return f"{value * scale:.3g} {unit}"
    return f"{value / 60:.3g} min"


def share(value: float) -> str:
    """Return a share in percent, with at least two significant digits."""
    return f"{100 * value:.{0 if value >= 0.0995 else 1}f} %"


def size(value: float) -> str:
    """Return a number of bytes in MiB or GiB."""
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def ratio(value: float) -> str:
    """Return a ratio with at least three significant digits from 1 on."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def thousands(value: float, _position: int | None = None) -> str:
    """Return a number with a suffix: 10000 as 10k, 1000000 as 1M."""
    for scale, unit in ((1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:g}{unit}"
    return f"{value:g}"
