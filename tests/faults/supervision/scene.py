"""Where the drill takes place: a whole stack of its own, the demo's streams at work, and flights that keep coming."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar

from pyiceberg.catalog import Catalog
from rich.console import Console
from tests.faults.supervision.judging import Judge
from tests.faults.supervision.measuring import DriverWatch, Publication, publications
from tests.faults.supervision.traffic import Traffic

from sluice.demo.airflow_api import AirflowApi
from sluice.demo.demonstration import unpause_streams
from sluice.demo.local_platform import LocalPlatform, open_platform, prepare_tables, start_stack, watch_streams
from sluice.demo.report import BRONZE, GOLD, SILVER, STREAMS, StreamWatch, have_read_everything
from sluice.errors import DemonstrationError, SluiceError
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import find_run, newest_run
from sluice.processes.host_processes import observe_process
from sluice.processes.process_identity import ProcessState
from sluice.tables.catalog import open_catalog

TARGETS: Mapping[str, str] = {
    BRONZE: "bronze.flights",
    SILVER: "silver.flights",
    GOLD: "gold.delays_by_carrier_hour",
}
"""The table that each stream publishes into; the quarantine of silver is published in the same turn."""

RECOVERED_WITHIN_SECONDS = 900.0
"""How long anything is waited for: far beyond every bound, so that a fault is not called lost on a busy machine."""

_POLL_SECONDS = 0.5

Answer = TypeVar("Answer")


class NotRecoveredError(SluiceError):
    """What the platform should have done by itself did not come about in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The running platform under the drill's hands. lots: draws every random choice."""

    platform: LocalPlatform
    catalog: Catalog
    watch: StreamWatch
    traffic: Traffic
    drivers: DriverWatch
    judge: Judge
    lots: random.Random
    console: Console

    @property
    def airflow(self) -> AirflowApi:
        """The public API of its Airflow."""
        return self.platform.airflow

    def run(self, stream: str) -> RunObservation:
        """The newest run of a stream, as the ledger holds it."""
        run = newest_run(self.platform.ledger, stream)
        if run is None:
            raise NotRecoveredError(f"Stream {stream} has no run.")
        return run

    def history(self, stream: str) -> list[Publication]:
        """The publications that a stream's target remembers."""
        return publications(self.catalog.load_table(TARGETS[stream]))

    def trigger_seconds(self, stream: str) -> float:
        """How often a stream plans a batch."""
        (declared,) = [one.declaration for one in self.watch.streams if one.name == stream]
        if declared.trigger is None or declared.trigger.processing_time is None:
            raise AssertionError(f"{stream} has no processing time")
        return declared.trigger.processing_time.total_seconds()

    def wait_for(
        self, seen: Callable[[], Answer | None], what: str, *, within_seconds: float = RECOVERED_WITHIN_SECONDS
    ) -> Answer:
        """Look again and again; what was seen. An Airflow that does not answer has nothing to show yet.

        Raises
        ------
        NotRecoveredError: when it is not seen in time, or the drill was stopped.
        """
        deadline = time.monotonic() + within_seconds
        while True:
            problem = ""
            try:
                answer = seen()
            except DemonstrationError as error:
                answer, problem = None, f" ({error})"
            if answer is not None and answer is not False:
                return answer
            if time.monotonic() > deadline:
                raise NotRecoveredError(f"Not within {within_seconds:.0f} s: {what}{problem}.")
            if self.platform.stopped.wait(_POLL_SECONDS):
                raise NotRecoveredError(f"The drill was stopped, which waited for this: {what}.")

    def await_end(self, run: RunObservation) -> RunObservation:
        """The run, once the ledger knows that it ended."""

        def ended() -> RunObservation | None:
            seen = find_run(self.platform.ledger, run.run_id)
            return None if seen.is_live else seen

        return self.wait_for(ended, f"the end of run {run.run_id} of {run.stream} is recorded")

    def await_publication(self, stream: str, *, token: int, after_seconds: float) -> Publication:
        """The first publication of a stream under this token or a higher one, committed after a moment."""

        def published() -> Publication | None:
            later = (one for one in self.history(stream) if one.token >= token and one.at_seconds > after_seconds)
            return next(later, None)

        return self.wait_for(published, f"{stream} publishes again, under token {token} or later")

    def await_calm(self) -> None:
        """Wait until every stream has a driver that works and has read everything; the traffic is to be paused."""

        def is_calm() -> bool:
            return all(self._works(stream) for stream in STREAMS) and have_read_everything(self.watch.observe())

        self.wait_for(is_calm, "every stream has a driver and has read everything")

    def reset_failures(self) -> None:
        """Request every stream again, so that each fault meets a stream without recent failures: no long back-off."""
        for stream in STREAMS:
            set_desired_state(self.platform.ledger, stream, DesiredState.RUNNING, requested_by="the supervision drill")

    def mend(self) -> None:
        """Do what a person does when a fault was too much: the faults behind it are to meet streams that run."""
        unpause_streams(self.platform)
        self.reset_failures()

    def _works(self, stream: str) -> bool:
        run = self.run(stream)
        return (
            run.state is RunState.RUNNING
            and run.process is not None
            and observe_process(run.process) is ProcessState.ALIVE
        )


@contextmanager
def open_scene(data: Path, *, seed: int, hours_per_second: float, console: Console) -> Iterator[Scene]:
    """Start the stack, its tables, the traffic and the demo's continuous streams.

    Parameters
    ----------
    data: the stack's folder; whoever calls ends the stack.
    """
    os.environ["SLUICE_DATA"] = str(data)
    access = start_stack(console)
    stopped = Event()
    with open_platform(access, stopped=stopped) as platform:
        prepare_tables(platform)
        platform.topic.create()
        catalog = open_catalog(platform.settings)
        with (
            DriverWatch(data) as drivers,
            Traffic(platform.topic, hours_per_second=hours_per_second, seed=seed) as traffic,
        ):
            scene = Scene(
                platform=platform,
                catalog=catalog,
                watch=watch_streams(platform),
                traffic=traffic,
                drivers=drivers,
                judge=Judge(catalog=catalog, topic=platform.topic),
                lots=random.Random(seed),  # noqa: S311  # which fault meets whom, not a secret
                console=console,
            )
            unpause_streams(platform)
            for stream in STREAMS:
                scene.wait_for(lambda stream=stream: bool(scene.history(stream)), f"{stream} publishes")  # type: ignore[misc]  # bound now
            try:
                yield scene
            finally:
                stopped.set()
