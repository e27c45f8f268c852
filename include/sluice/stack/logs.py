"""Read the log files of the services."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

_TAIL_BYTES = 64 * 1024
_POLL_SECONDS = 0.2
_LONGEST_LINE = 300


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log; of a long one only the last 64 KiB are read.

    Parameters
    ----------
    log: the file; a missing file has no lines.
    count: how many lines at most.
    """
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        # SeaweedFS writes NUL bytes; some terminals do not show what follows them.
        text = file.read().replace(b"\0", b"").decode(errors="replace")
    return text.splitlines()[-count:]


def last_line(log: Path) -> str:
    """The last line that is not blank, shortened to fit into a message."""
    lines = [line.strip() for line in last_lines(log, 50) if line.strip()]
    return lines[-1][:_LONGEST_LINE] if lines else "it wrote nothing"


def follow(log: Path, *, position: int) -> Iterator[str]:
    """Yield the lines that are appended to a log, also after the file was renamed and started again.

    Parameters
    ----------
    log: the file.
    position: where to begin, in bytes.
    """
    while True:
        size = log.stat().st_size if log.exists() else 0
        if size < position:
            position = 0
        if size > position:
            with log.open("rb") as file:
                file.seek(position)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                position += len(whole) + 1
                yield from whole.replace(b"\0", b"").decode(errors="replace").splitlines()
                continue
        time.sleep(_POLL_SECONDS)
