"""Waits for things of the platform as long as anything on it moves.

A wait with a total would fail on a busy machine although the platform is at work. A wait without any would never report
a platform that hangs. So every wait of the demo ends early only when nothing has moved for some time, wherever: a
record sent, a batch or a job recorded in the ledger, a task of Airflow in another state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from sluice.errors import DemonstrationError

Answer = TypeVar("Answer")

STANDSTILL_SECONDS = 480.0
"""The longest step of the platform that shows nothing, a start of several JVMs, takes half a minute on two idle cores.
It is less than the ten minutes after which the schedule of the weather moves something by itself."""

_OBSERVE_EVERY_SECONDS = 10.0
"""An observation asks the ledger and Airflow, and is of interest only when nothing happens."""

_POLL_SECONDS = 1.0
"""Several waits at a time look at the streams and ask Airflow's API server, each for some hundredths of a second of a
processor: twice a second they would cost as much as a driver's start."""


class Standstill:
    """Waits, and notices when nothing moves. Safe to use from several threads.

    Parameters
    ----------
    observe: what the platform has done so far; another value is a move.
    stopped: ends every wait when it is set.
    clock: a monotonic clock in seconds.
    """

    def __init__(
        self, observe: Callable[[], object], *, stopped: Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._observe = observe
        self._stopped = stopped
        self._clock = clock
        self._lock = threading.Lock()
        self._observed_at = float("-inf")
        self._observed: object = None
        self._moved_at = float("-inf")

    def note_move(self) -> None:
        """Note a move that no observation shows."""
        self._moved_at = self._clock()

    def await_answer(self, look: Callable[[], Answer | None], *, what: str, next_step: str) -> Answer:
        """Look repeatedly until there is an answer.

        Parameters
        ----------
        look: looks once; None when there is no answer yet.
        what: what is not so yet, as the beginning of a sentence.
        next_step: what a person does when nothing moves.

        Raises
        ------
        DemonstrationError: when nothing has moved for `STANDSTILL_SECONDS`, or the demo is stopped.
        """
        began = self._clock()
        while (answer := look()) is None:
            self._observe_when_due()
            if self._clock() - max(began, self._moved_at) > STANDSTILL_SECONDS:
                raise DemonstrationError(
                    f"{what}, and nothing has moved for {STANDSTILL_SECONDS:.0f} s.", next_step=next_step
                )
            if self._stopped.wait(_POLL_SECONDS):
                raise DemonstrationError("The demo was stopped.")
        return answer

    def _observe_when_due(self) -> None:
        with self._lock:
            if self._clock() - self._observed_at < _OBSERVE_EVERY_SECONDS:
                return
            seen = self._observe()
            self._observed_at = self._clock()
            if seen != self._observed:
                self._observed, self._moved_at = seen, self._observed_at
