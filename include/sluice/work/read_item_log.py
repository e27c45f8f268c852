"""The log of a work item: its lines in the log of the application that did it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from sluice.launching.item_log import lines_of_item
from sluice.ledger.work_values import WorkObservation
from sluice.processes.log_rotation import rotated_logs


def last_lines_of_item(seen: WorkObservation, *, limit: int) -> list[str]:
    """The last lines about an item; when this host has none, a line that says whose log has them."""
    if seen.application is None:
        return ["no application has claimed this item yet"]
    own: deque[str] = deque(maxlen=limit)
    if seen.log_file is not None:
        own.extend(lines_of_item(_lines(rotated_logs(Path(seen.log_file))), UUID(seen.item)))
    return list(own) or [f"no log on this host has a line about this item: see that of application {seen.application}"]


def _lines(logs: Iterable[Path]) -> Iterator[str]:
    for log in logs:
        with log.open(encoding="utf-8", errors="replace") as lines:
            yield from (line.rstrip("\n") for line in lines)


@dataclass(slots=True, kw_only=True)
class FollowedLog:
    """The lines of an item in the log of its application, as they come. Each byte of the log is read once. A log that
    was cut, because it was full, is followed from its new beginning.

    on_line: is called with each line.
    """

    item: str
    on_line: Callable[[str], object]
    _path: str = ""
    _read_bytes: int = 0
    _beginning: str = ""

    def read(self, seen: WorkObservation) -> None:
        """Hand on the lines that have come, when the log is on this host."""
        if seen.log_file is None or not Path(seen.log_file).exists():
            return
        if seen.log_file != self._path:
            self._path, self._read_bytes, self._beginning = seen.log_file, 0, ""
        with Path(self._path).open("rb") as log:
            if log.seek(0, os.SEEK_END) < self._read_bytes:
                self._read_bytes, self._beginning = 0, ""
            log.seek(self._read_bytes)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        if whole:
            self._hand_on(whole.decode(errors="replace").split("\n")[:-1])

    def _hand_on(self, lines: Sequence[str]) -> None:
        """The first of these lines may continue a line that has come before: the beginning."""
        before = [self._beginning] if self._beginning else []
        item = UUID(self.item)
        found = list(lines_of_item([*before, *lines], item))
        for line in found[len(before) :]:
            self.on_line(line)
        is_cut = bool(found) and found[-1] is lines[-1]
        begun = (line for line in reversed(found) if list(lines_of_item([line], item)))
        self._beginning = next(begun, "") if is_cut else ""
