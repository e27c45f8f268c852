"""The parts of messages: text that every table, log, page and terminal can show, places, and durations in words.

PostgreSQL stores no NUL and no half of a surrogate pair; a terminal obeys control characters; a page shows what follows
a change of direction in another order than it is stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"
_DIRECTION = "\u202a-\u202e\u2066-\u2069"
_HALF_PAIRS = "\ud800-\udfff"
_UNSHOWABLE = re.compile(f"[{_CONTROL}{_DIRECTION}{_HALF_PAIRS}]")
_NOT_IN_A_LINE = re.compile(f"[\t\n{_CONTROL}{_DIRECTION}{_HALF_PAIRS}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where something was written: a file and, where it is known, the 1-based line."""

    file: Path
    line: int | None = None

    def __str__(self) -> str:
        return one_line(str(self.file)) + (f":{self.line}" if self.line is not None else "")


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def unshowable_character(text: str) -> str | None:
    """The first character that cannot be shown, as `U+0000`; none when all can. Tabs and line feeds can."""
    if text.isprintable() or text.replace("\n", "").isprintable():  # ten times as fast, and right for most texts
        return None
    found = _UNSHOWABLE.search(text)
    return f"U+{ord(found[0]):04X}" if found is not None else None


def one_line(text: str) -> str:
    r"""The text in one line, with an escape such as `\x1b` for each character that cannot be shown there."""
    return text if text.isprintable() else _NOT_IN_A_LINE.sub(_escape, text)


def plain_text(text: str, *, longest: int) -> str:
    r"""The text with an escape such as `\x00` for each character that cannot be shown, cut to a length.

    Parameters
    ----------
    longest: the most characters of the result; a cut text ends with `…`.
    """
    plain = _UNSHOWABLE.sub(_escape, text[: longest + 1])
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


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
