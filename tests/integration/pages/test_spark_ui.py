"""Where Spark's own UI of a stream is looked for, with a real ledger and real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from sluice.errors import DriverUiError
from sluice.ledger.connection import Ledger
from sluice.ledger.driver_access import DriverUi, find_driver_ui, record_driver_ui
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import admit_run, record_end, record_process
from sluice.pages.spark_ui import MOST_BYTES, bounded, find_ui, listens_on, read_ui
from sluice.processes.host_processes import identity_of, observe_process
from sluice.processes.process_identity import ProcessIdentity

HERE = identity_of(os.getpid())


def ui_of(run: RunObservation, **changed: object) -> DriverUi:
    """What its driver would record."""
    ui = DriverUi(run_id=run.run_id, port=4040, application="local-1", key="a2V5")
    return replace(ui, **changed)  # type: ignore[arg-type]  # the fields of the class


def a_run(ledger: Ledger, process: ProcessIdentity) -> RunObservation:
    """A live run that a process carries out."""
    run = admit_run(ledger, stream="clicks", mode="continuous", declaration_digest="d", launched_by="a test")
    return record_process(ledger, run.run_id, process, None)


def _own(pid: int, port: int) -> bool:
    return (pid, port) == (HERE.pid, 4040)


def problem(ledger: Ledger, *, listens: Callable[[int, int], bool] = listens_on) -> str:
    """Why the UI cannot be shown."""
    with pytest.raises(DriverUiError) as raised:
        find_ui(ledger, "clicks", observe_process=observe_process, listens=listens)
    return str(raised.value)


def test_the_ui_of_the_driver_that_runs_now_is_found(ledger: Ledger) -> None:
    first = a_run(ledger, HERE)
    record_driver_ui(ledger, "clicks", ui_of(first))
    assert find_ui(ledger, "clicks", observe_process=observe_process, listens=_own) == ui_of(first)
    assert "serves no UI" in problem(ledger), "another program, or none, listens on the port"
    record_end(ledger, first.run_id, state=RunState.FINISHED, exit_code=0, reason="stopped")
    assert "No driver of clicks runs now" in problem(ledger)

    second = a_run(ledger, HERE)
    assert "serves no UI, or not yet" in problem(ledger, listens=_own), "recorded is the UI of an earlier driver"
    record_driver_ui(ledger, "clicks", ui_of(second, port=4041))
    assert find_driver_ui(ledger, "clicks") == ui_of(second, port=4041)


def test_a_key_is_in_no_text_of_its_record(ledger: Ledger) -> None:
    assert "a2V5" not in repr(ui_of(a_run(ledger, HERE)))


@pytest.mark.parametrize(
    ("process", "reason"),
    [
        (replace(HERE, host="another-host"), "runs on another-host: its UI listens there on loopback alone"),
        (replace(HERE, pid_namespace=1), "and is not reachable from here"),
        (replace(HERE, host="the_cluster", pid=0, application="clicks:1:r"), "on the cluster of the Spark connection"),
    ],
    ids=["host", "container", "cluster"],
)
def test_a_ui_elsewhere_is_not_reachable_and_the_reason_is_said(
    ledger: Ledger, process: ProcessIdentity, reason: str
) -> None:
    record_driver_ui(ledger, "clicks", ui_of(a_run(ledger, process)))

    assert reason in problem(ledger)


def test_a_port_where_nothing_listens_is_reported(ledger: Ledger) -> None:
    with pytest.raises(DriverUiError, match="does not answer: ConnectError"):
        read_ui(ui_of(a_run(ledger, HERE), port=1), "jobs/", query="", base="/b")


def test_an_answer_is_read_no_further_than_is_shown() -> None:
    """User code writes into the pages of its driver."""

    parts = iter([b"x" * (MOST_BYTES // 2)] * 3)
    with pytest.raises(DriverUiError, match=f"more than {MOST_BYTES:,} bytes"):
        bounded(httpx.Response(200, content=parts), time.monotonic() + 600)
    with pytest.raises(DriverUiError, match="or too slowly"):
        bounded(httpx.Response(200, content=iter([b"x"])), time.monotonic() - 1)
