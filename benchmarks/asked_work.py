"""Work that a benchmark asks for in the queue, and the applications that do it, started as a command starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from sluice.launching.launcher_port import LaunchRequest
from sluice.launching.launchers import LocalLauncher
from sluice.launching.spark_submit import SparkConnection
from sluice.ledger.connection import open_ledger
from sluice.ledger.work_items import ask
from sluice.ledger.work_values import WorkState
from sluice.processes.host_processes import kill_group
from sluice.processes.process_identity import ProcessIdentity
from sluice.settings import Settings
from sluice.work.requests import WorkRequest
from sluice.work.start_application import WorkQueue, await_item, profile_for

GRACE_SECONDS = 60.0
_LOCAL = SparkConnection(master="local[2]")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLauncher(LocalLauncher):
    """Starts applications with the environment of a stack. started: their processes."""

    environment: Mapping[str, str]
    started: list[ProcessIdentity] = field(default_factory=list)

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Start an application."""
        with patch.dict(os.environ, self.environment):
            process = LocalLauncher.launch(self, request)
        self.started.append(process)
        return process


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedWork:
    """Asks for work and waits for it, as a command does."""

    settings: Settings
    launcher: BenchLauncher

    @property
    def applications(self) -> int:
        """How many were started."""
        return len(self.launcher.started)

    def have_done(self, request: WorkRequest, *, asked_by: str = "a benchmark") -> None:
        """Ask for something and wait for its end; start an application when none takes it.

        Raises
        ------
        SystemExit: when it failed.
        """
        profile, lines = profile_for(request, self.settings.pipelines), list[str]()
        with open_ledger(self.settings.ledger_url.get_secret_value()) as ledger:
            queue = WorkQueue(
                settings=self.settings,
                ledger=ledger,
                connections=lambda _: _LOCAL,
                launcher=self.launcher,
                asked_by=asked_by,
            )
            (item,) = ask(ledger, queue.item(request, profile))
            seen = await_item(queue, item, profile, on_line=lines.append)
        if seen.state is not WorkState.DONE:
            log = "" if seen.log_file is None else Path(seen.log_file).read_text()[-4000:]
            raise SystemExit(f"{request} is {seen.state}: {seen.failure}\n{log}")

    def end_applications(self) -> None:
        """End every application, so that what is asked for next starts one."""
        for process in self.launcher.started:
            self.launcher.stop(process, grace_seconds=GRACE_SECONDS)


@contextmanager
def asked_work(settings: Settings, environment: Mapping[str, str]) -> Iterator[AskedWork]:
    """Asks for work of a stack; no application outlives the block."""
    launcher = BenchLauncher(ledger_url=settings.ledger_url.get_secret_value(), environment=environment)
    try:
        yield AskedWork(settings=settings, launcher=launcher)
    finally:
        for process in launcher.started:
            kill_group(process.pid)
