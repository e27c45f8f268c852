"""The end of a driver's log, for its page."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sluice.ledger.run_values import RunObservation
from sluice.messages.redaction import redacted

SHOWN_BYTES = 24_000
"""About a hundred lines; the whole log is `sluice stream logs`."""

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The end of a log. text: empty when it cannot be read here; `problem` says why."""

    text: str
    problem: str = ""


def read_log_tail(run: RunObservation | None) -> LogTail:
    """Read the end of the log of a run's driver, where this process can read it."""
    if run is None or run.log_file is None:
        return LogTail(text="", problem="Its newest run has no log of its own: Airflow keeps the log of its task.")
    try:
        return LogTail(text=_tail_of(run.log_file))
    except OSError as error:
        host = run.process.host if run.process is not None else "the host of its driver"
        return LogTail(text="", problem=f"{run.log_file} on {host} cannot be read from here: {error.strerror}.")


def _tail_of(file: Path) -> str:
    with file.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - SHOWN_BYTES))
        text = log.read(SHOWN_BYTES).decode(errors="replace")
    whole = text if size <= SHOWN_BYTES else text.partition("\n")[2]
    return redacted(_ESCAPES.sub("", whole))
