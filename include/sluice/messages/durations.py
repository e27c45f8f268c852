"""Durations as a person reads them, the same in explanations, events, the command line and the pages. Pure."""

from __future__ import annotations

from datetime import timedelta

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def in_words(duration: timedelta) -> str:
    """A duration in its two largest units: `4 min 10 s`, `2 h`, `1.4 s`, `20 ms`; nothing when it is negative."""
    seconds = max(0.0, duration.total_seconds())
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if 1 <= seconds < 10 and not seconds.is_integer():
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size or parts:
            count, left = divmod(left, size)
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part) or "0 s"
