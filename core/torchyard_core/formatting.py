"""Amounts in few letters, with their units: the same in the window and on the command line."""

from __future__ import annotations


def seconds(value: float) -> str:
    """1.25 s, 312 ms, 4.1 ms, 0 s: three digits at most."""
    if value >= 0.9995:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s" if value < 99.95 else f"{value:.0f} s"
    milliseconds = value * 1000
    if milliseconds < 0.05:
        return "0 s"
    return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"


def count(value: float) -> str:
    """1,204; a mean of whole numbers, as staleness is, with one digit where it has any: 2.5."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


def traffic(value: float) -> str:
    """Bytes a second: 640 B/s, 12.3 MB/s, 118 MB/s."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if value < 999.5:
            return f"{value:.1f} {unit}" if value < 99.95 and unit != "B/s" else f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB/s"


def size(value: float) -> str:
    """Bytes: 12.3 MB."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
