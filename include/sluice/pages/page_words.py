"""Figures, times and marks as a person reads them on a page. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sluice.messages.durations import in_words

NOTHING = "\N{EN DASH}"
"""Stands where there is no figure."""

_RUN_ID = re.compile(r"\b([0-9a-f]{8})(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b")

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class ShownTone(StrEnum):
    """How a state is marked: by a symbol, a word and a colour, of which each alone is enough."""

    GOOD = "good"
    CALM = "calm"
    ODD = "odd"
    BAD = "bad"


def count_text(count: float | None) -> str:
    """A count: `81,204`; from a million on `2.1 M`."""
    if count is None:
        return NOTHING
    if abs(count) >= 1_000_000_000:
        return f"{count / 1_000_000_000:.1f} G"
    if abs(count) >= 1_000_000:
        return f"{count / 1_000_000:.1f} M"
    return f"{count:,.0f}"


def size_text(size_bytes: float | None) -> str:
    """A size: `812 B`, `12.3 MiB`."""
    if size_bytes is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def rate_text(per_second: float) -> str:
    """A rate in rows a second: `0`, `0.4`, `412`, `18.2k`."""
    if per_second == 0:
        return "0"
    if per_second < 10:
        return f"{per_second:.1f}"
    if per_second < 10_000:
        return f"{per_second:,.0f}"
    return f"{per_second / 1000:,.1f}k"


def short_name(name: str, most: int) -> str:
    """A name of at most so many characters. The middle is left out: names that begin alike differ at their end."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}…{name[-end:]}"


def without_long_ids(text: str) -> str:
    """The text with the ids of runs cut to the eight characters by which every list names them."""
    return _RUN_ID.sub(r"\1", text)


def duration_text(duration: timedelta | None) -> str:
    """A duration in its two largest units, as everywhere; a dash where there is none."""
    return NOTHING if duration is None else in_words(duration)


def age_words(age: timedelta | None) -> str:
    """How long ago: `just now`, `38 min ago`, `5 h ago`."""
    if age is None:
        return NOTHING
    seconds = age.total_seconds()
    if seconds < 2:
        return "just now"
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size)
    return f"{seconds // size:.0f} {unit} ago"


def moment_text(moment: datetime | None) -> str:
    """The exact time: `2026-11-22 14:01:58 UTC`."""
    return NOTHING if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


class DoneWord(StrEnum):
    """What was done, in the address to which a browser is sent after it."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RESET_BREAKER = "reset-breaker"
    REPAIR = "repair"
    RESET = "reset"
    REWIND = "rewind"
    BACKFILL = "backfill"
    MAINTAIN = "maintain"
    REJECT_BATCH = "reject-batch"
    RELEASE_BATCH = "release-batch"
    SEPARATE_BATCH = "separate-batch"
    UNPAUSE = "unpause"


_IN_LEDGER = "{} is in the ledger; what follows appears below by itself."
_IN_CONTROL = "Airflow has queued the {} in the DAG stream_control; its result appears below."

DONE_SENTENCES: Mapping[DoneWord, str] = {
    DoneWord.START: _IN_LEDGER.format("Start"),
    DoneWord.STOP: _IN_LEDGER.format("Stop"),
    DoneWord.RESTART: _IN_LEDGER.format("Restart"),
    DoneWord.RESET_BREAKER: _IN_LEDGER.format("Reset-breaker"),
    DoneWord.REPAIR: "What disagreed of its position is written back; the stream stays as it is until it is started.",
    DoneWord.RESET: "A new generation is open; the stream stays stopped until it is started.",
    DoneWord.REWIND: "The stream and its tables stand at the batch; it stays stopped until it is started.",
    DoneWord.BACKFILL: "Airflow has queued the runs of the backfill.",
    DoneWord.MAINTAIN: "Airflow has queued the maintenance run; its result appears below.",
    DoneWord.UNPAUSE: "The DAG is unpaused: its next run follows its schedule.",
    DoneWord.REJECT_BATCH: _IN_CONTROL.format("rejection"),
    DoneWord.RELEASE_BATCH: _IN_CONTROL.format("release"),
    DoneWord.SEPARATE_BATCH: _IN_CONTROL.format("release without the failing rows"),
}
"""What is said of each."""
