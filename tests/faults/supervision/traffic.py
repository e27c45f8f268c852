"""Flights that go on and on: day after day of the year is sent to Kafka, until the drill ends or holds its breath."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from threading import Event
from types import TracebackType
from typing import Self

from sluice.demo.flight_streaming import replay
from sluice.demo.flights_data import FIRST_DAY
from sluice.demo.flights_topic import FlightsTopic, make_plan, next_span
from sluice.demo.replay_plan import ReplayPlan
from sluice.errors import DemonstrationError

DAYS_OF_A_PLAN = 7
_PAUSED_WITHIN_SECONDS = 120.0


class Traffic:
    """Sends flights in a thread of its own. A context manager: leaving it ends the sending.

    Flights that are a day late are left out, so that no table may miss a flight. What Kafka did not acknowledge is no
    promise; what the topic holds is the truth of the drill.

    Parameters
    ----------
    topic: exists and is empty.
    hours_per_second: hours of flights in one second.
    seed: decides what is repeated, malformed or out of order.
    """

    def __init__(self, topic: FlightsTopic, *, hours_per_second: float, seed: int) -> None:
        self._topic = topic
        self._hours_per_second = hours_per_second
        self._seed = seed
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="traffic")
        self._sending: Future[None] | None = None
        self._ended = Event()
        self._held = Event()
        self._plans: list[ReplayPlan] = []
        self._sent_of_newest = 0

    @property
    def plans(self) -> tuple[ReplayPlan, ...]:
        """Every plan that was begun."""
        return tuple(self._plans)

    def __enter__(self) -> Self:
        self.go_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        with suppress(DemonstrationError):  # how the sending went was asked for at every pause
            self.pause()
        self._pool.shutdown()

    def go_on(self) -> None:
        """Send from where it was paused."""
        self._held.clear()
        self._sending = self._pool.submit(self._send)

    def pause(self) -> None:
        """Hold the sending, when everything sent is acknowledged.

        Raises
        ------
        DemonstrationError: when the broker refused, or the year is over.
        """
        self._held.set()
        if self._sending is not None:
            self._sending.result(_PAUSED_WITHIN_SECONDS)

    def _send(self) -> None:
        while not self._is_held():
            if not self._plans or self._sent_of_newest == len(self._plans[-1].on_time):
                self._plans.append(self._next_plan())
                self._sent_of_newest = 0
            plan = self._plans[-1]
            self._sent_of_newest += replay(
                plan.on_time[self._sent_of_newest :],
                plan_name=plan.name,
                topic=self._topic,
                hours_per_second=self._hours_per_second,
                report=lambda _: None,
                is_stopped=self._is_held,
            )

    def _is_held(self) -> bool:
        return self._held.is_set() or self._ended.is_set()

    def _next_plan(self) -> ReplayPlan:
        first_day = self._plans[-1].span.next_day if self._plans else FIRST_DAY
        span = next_span(first_day_offset=(first_day - FIRST_DAY) // timedelta(days=1), days=DAYS_OF_A_PLAN)
        if span is None:
            raise DemonstrationError(
                "Every flight of 2013 is sent and the drill is not over.", next_step="Ask for a smaller --pace."
            )
        return make_plan(f"{self._seed}/{span.first_day}/{span.days}")
