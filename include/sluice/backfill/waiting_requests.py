"""The requests of a command that waits for its intervals itself, without a task for each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sluice.errors import LedgerError
from sluice.ledger.backfill_requests import end_request, observe_request
from sluice.ledger.connection import Ledger
from sluice.ledger.records.backfill_request import RequestState

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0
"""Between two looks: well within the minute after which a request is not waited for any more."""


@contextmanager
def waiting_for(ledger: Ledger, numbers: Sequence[int], *, look_seconds: float = _LOOK_SECONDS) -> Iterator[None]:
    """Look at requests again and again while the block runs, and withdraw at its end those that are open.

    Parameters
    ----------
    look_seconds: between two looks.
    """
    is_over = threading.Event()
    looking = threading.Thread(target=_look, args=(ledger, numbers, is_over, look_seconds), daemon=True)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()
        for number in numbers:
            end_request(ledger, number, RequestState.WITHDRAWN)


def _look(ledger: Ledger, numbers: Sequence[int], is_over: threading.Event, look_seconds: float) -> None:
    while not is_over.wait(look_seconds):
        try:
            for number in numbers:
                observe_request(ledger, number)
        except LedgerError as error:
            _log.warning("The requests cannot be looked at: %s", error)
