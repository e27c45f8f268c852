"""Waits for work items as a command does: starts an application when one is needed, and follows the items' log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sluice.errors import LaunchError
from sluice.ledger.work_items import find_pool, observe_items, withdraw_items
from sluice.ledger.work_tables import WorkListener
from sluice.ledger.work_values import Pool, WorkObservation
from sluice.processes.deadline import Deadline
from sluice.work.pools import EngineProfile
from sluice.work.read_item_log import FollowedLog
from sluice.work.start_application import WorkQueue

LOG_SECONDS = 0.3
"""Between two looks at the log of an item, which announces nothing."""

_LOOK_SECONDS = 5.0
"""Between two looks at an item that the ledger announces nothing about: its application may have died, and an
announcement may have been missed."""


@contextmanager
def asked_for(queue: WorkQueue, items: Sequence[str]) -> Iterator[None]:
    """Withdraw the items when the block ends by an interruption or an error."""
    try:
        yield
    except BaseException:  # also Ctrl-C: what is withdrawn stops, or is not begun
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
    LaunchError: when no application can be started, or none could do the item any more, because the files of the
        deployment have changed since it was asked for.
    SettingsError: when the Spark connection is missing or wrong.
    """
    log = FollowedLog(item=item, on_line=on_line)
    with WorkListener(queue.settings.ledger_url, [item]) as listener:
        while True:
            seen = observe_items(queue.ledger, [item, *beside])[item]
            if seen.needs_application and (pool := find_pool(queue.ledger, item)) is not None:
                _require_same_deployment(queue.pool(profile), pool)
                queue.start_application(item, pool, profile)
            log.read(seen)
            if not seen.state.is_open:
                time.sleep(LOG_SECONDS)  # the last lines: nothing says when the log has them all
                log.read(seen)
                return seen
            look_again = Deadline.after(_LOOK_SECONDS)
            while not listener.wait(LOG_SECONDS) and not look_again.is_over():
                log.read(seen)


def _require_same_deployment(now: Pool, asked_for: Pool) -> None:
    if now != asked_for:
        raise LaunchError(
            "The files or settings of the deployment have changed since the work was asked for, so no application that "
            "starts now would do it.",
            next_step="Run the command again.",
        )
