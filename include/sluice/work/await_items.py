"""Waits for work items as a command does: starts an application when one is needed, and follows the items' log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from uuid import UUID

from sluice.launching.item_log import lines_of_item
from sluice.ledger.records.work import WorkObservation
from sluice.ledger.work_items import find_pool, observe_item, withdraw_items
from sluice.work.pools import EngineProfile
from sluice.work.start_application import WorkQueue

_LOOK_SECONDS = 0.3


@contextmanager
def asked_for(queue: WorkQueue, items: Sequence[str]) -> Iterator[None]:
    """Withdraw the items when the block ends by an interruption or an error."""
    try:
        yield
    except BaseException:
        withdraw_items(queue.ledger, items)
        raise


def await_item(
    queue: WorkQueue, item: str, profile: EngineProfile, *, on_line: Callable[[str], object], beside: Sequence[str] = ()
) -> WorkObservation:
    """Wait until an item has ended.

    Parameters
    ----------
    profile: the engine settings of the item, if an application has to be started.
    on_line: is called with each line that an application of this host logs about the item.
    beside: further items that are waited for afterwards, and looked at meanwhile so that they stay asked for.

    Raises
    ------
    LaunchError, SettingsError: when no application can be started.
    LedgerError: when the ledger cannot be reached.
    """
    log = _FollowedLog(item=item, on_line=on_line)
    while True:
        for other in beside:
            observe_item(queue.ledger, other)
        seen = observe_item(queue.ledger, item)
        if seen.needs_application and (pool := find_pool(queue.ledger, item)) is not None:
            queue.start_application(item, pool, profile)
        log.read(seen)
        if not seen.state.is_open:
            time.sleep(_LOOK_SECONDS)
            log.read(seen)
            return seen
        time.sleep(_LOOK_SECONDS)


@dataclass(slots=True, kw_only=True)
class _FollowedLog:
    """The lines of an item in the log of its application, as they come."""

    item: str
    on_line: Callable[[str], object]
    _file: TextIOWrapper | None = None
    _path: str = ""
    _lines: list[str] = field(default_factory=list)
    _shown: int = 0

    def read(self, seen: WorkObservation) -> None:
        """Hand on what has come."""
        if seen.log_file is None or not Path(seen.log_file).exists():
            return
        if seen.log_file != self._path:
            self._path, self._lines, self._shown = seen.log_file, [], 0
            self._file = Path(seen.log_file).open(encoding="utf-8", errors="replace")  # noqa: SIM115  # read again later
        if self._file is None:
            return
        while line := self._file.readline():
            self._lines.append(line.rstrip("\n"))
        for line in list(lines_of_item(self._lines, UUID(self.item)))[self._shown :]:
            self._shown += 1
            self.on_line(line)
