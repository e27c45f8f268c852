"""What a driver's parent tells the ledger: the process before it begins, and how it ended.

Apart from `attend`, so that the parent stays small while the driver runs: this room brings SQLAlchemy with it.
"""

from __future__ import annotations

from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from sluice.errors import LedgerUnreachableError
from sluice.ledger.connection import open_ledger
from sluice.ledger.records.run import DriverExit
from sluice.ledger.runs import record_end, record_process
from sluice.processes.driver_processes import identity_of
from sluice.processes.process_identity import ProcessIdentity

PROCESS_RECORDED_WITHIN_SECONDS = 30.0
"""How long an absent ledger is asked again before a launch is given up; the driver has not begun then."""

EXIT_RECORDED_WITHIN_SECONDS = 600.0
"""How long an absent ledger is asked again about an exit; afterwards the note beside the log is what is left."""


def record_driver_process(*, ledger_url: str, run_id: str, pid: int, log_file: Path) -> ProcessIdentity:
    """Bind a run to the process that waits to become its driver.

    Raises
    ------
    LedgerError: when the ledger refuses (the run has a process or has ended), or stays away.
    """
    identity = identity_of(pid)
    with open_ledger(ledger_url) as ledger:
        for attempt in _while_unreachable(PROCESS_RECORDED_WITHIN_SECONDS):
            with attempt:
                record_process(ledger, run_id, identity, log_file)
    return identity


def record_driver_exit(*, ledger_url: str, run_id: str, ended: DriverExit) -> None:
    """Tell the ledger how a driver ended; what the driver said of itself before stays.

    Raises
    ------
    LedgerError: when the run is unknown, or the ledger stays away.
    """
    with open_ledger(ledger_url) as ledger:
        for attempt in _while_unreachable(EXIT_RECORDED_WITHIN_SECONDS):
            with attempt:
                record_end(
                    ledger,
                    run_id,
                    state=ended.state,
                    exit_code=ended.exit_code,
                    reason=ended.reason,
                    failure=ended.failure,
                )


def _while_unreachable(within_seconds: float) -> Retrying:
    return Retrying(
        retry=retry_if_exception_type(LedgerUnreachableError),
        wait=wait_exponential(multiplier=0.2, max=5),
        stop=stop_after_delay(within_seconds),
        reraise=True,
    )
