"""The attendant of a driver: `python -m sluice.launching.attend --run-id=R --log-file=F --report-fd=N -- COMMAND …`

It detaches itself, holds the driver at a gate until the ledger has bound the run to the driver's process, lets the
driver start, waits for its end and records the end at once. Therefore:

- No driver starts unrecorded. The launching process may die at any moment: the next one finds the run and adopts it.
- The ledger refuses a second launch of the same run, and its driver never starts.
- The end of a driver is known in a second, not only when a heartbeat is missed.

When the attendant is killed, the driver lives on, and the supervisor observes its end by its process.

The attendant lives as long as the driver and takes about 7 MB. So a module that is not needed while the driver runs is
imported inside a function: by a short-lived child, or after the driver's end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from sluice.processes.driver_watch import MemoryKillWatch, keep_rotating

_GATE = ("/bin/sh", "-c", 'read -r _ && exec "$@" </dev/null', "sluice-driver")
"""The future driver: waits for a line, then becomes the command under the same process id. When the attendant dies
first, `read` reaches the end of the pipe and no driver starts."""


def main() -> NoReturn:
    """Detach, then attend one driver from its gate to its end."""
    arguments = _parse_arguments()
    if os.fork():
        os._exit(0)  # the launcher waits for this process, so it has no child afterwards
    # A process group of its own, so that the whole driver can be ended, and only the driver.
    driver = subprocess.Popen([*_GATE, *arguments.command], stdin=subprocess.PIPE, process_group=0)  # noqa: S603  # the launcher's own command line
    signal.signal(signal.SIGTERM, lambda *_: _ask_to_end(driver.pid))
    is_recorded = _record_process_in_child(arguments, driver.pid)
    os.close(arguments.report_fd)
    _open_gate(driver, is_recorded)
    keep_rotating(arguments.log_file)
    kills = MemoryKillWatch().start()
    _wait_for_end(driver)
    if is_recorded:
        _record_exit(arguments, driver.returncode, is_memory_kill=kills.has_killed())
    sys.exit(0)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Attend the driver of one run.", allow_abbrev=False)
    parser.add_argument("--run-id", required=True, help="of the run, or of the application")
    parser.add_argument("--is-application", action="store_true", help="record an application for work items, not a run")
    parser.add_argument("--log-file", required=True, type=Path, help="the file that has the output of this process")
    parser.add_argument("--report-fd", required=True, type=int, help="where to write the result of the launch")
    parser.add_argument("command", nargs="+", help="the driver's command line, after --")
    return parser.parse_args()


def _record_process_in_child(arguments: argparse.Namespace, pid: int) -> bool:
    """Bind the run to the process in a child, whose end frees the memory of its imports."""
    child = os.fork()
    if child == 0:
        os._exit(_record_process(arguments, pid))
    return os.waitpid(child, 0)[1] == 0


def _record_process(arguments: argparse.Namespace, pid: int) -> int:
    import json
    from dataclasses import asdict

    from sluice.errors import SluiceError
    from sluice.launching.driver_records import record_driver_process

    with open(arguments.report_fd, "w", closefd=False) as report:
        try:
            identity = record_driver_process(
                ledger_url=os.environ["SLUICE_LEDGER_URL"],
                run_id=arguments.run_id,
                pid=pid,
                log_file=arguments.log_file,
                is_application=arguments.is_application,
            )
        except SluiceError as error:
            json.dump({"problem": str(error)}, report)
            return 1
        json.dump({"process": asdict(identity)}, report)
    return 0


def _open_gate(driver: subprocess.Popen[bytes], is_recorded: bool) -> None:
    """Let the driver start when its process is recorded; otherwise end it at the gate."""
    gate = driver.stdin
    assert gate is not None  # noqa: S101  # it was asked for with PIPE
    with contextlib.suppress(BrokenPipeError):  # the driver was ended at the gate
        if is_recorded:
            gate.write(b"\n")
        gate.close()


def _wait_for_end(driver: subprocess.Popen[bytes]) -> None:
    """Wait for the driver, and kill the rest of its process group before its id can be reused."""
    os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def _record_exit(arguments: argparse.Namespace, exit_code: int, *, is_memory_kill: bool) -> None:
    """Write the note, record the exit in the ledger, remove the note."""
    from sluice.errors import LedgerError
    from sluice.launching.driver_records import exit_of, record_driver_exit, remove_exit_note, write_exit_note

    ended = exit_of(exit_code, arguments.log_file, is_memory_kill=is_memory_kill)
    try:
        write_exit_note(arguments.log_file, ended)
    except OSError as error:  # a full disk must not prevent the record in the ledger
        _log(f"the note of the exit could not be written: {error}")
    try:
        record_driver_exit(
            ledger_url=os.environ["SLUICE_LEDGER_URL"],
            run_id=arguments.run_id,
            ended=ended,
            is_application=arguments.is_application,
        )
    except LedgerError as error:
        _log(f"the exit ({ended.reason}) is not in the ledger: {error}")
        sys.exit(1)
    remove_exit_note(arguments.log_file)


def _ask_to_end(pid: int) -> None:
    # One request is enough, and a second one would interrupt the import and end the attendant, not the driver.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from sluice.processes.host_processes import ask_to_end

    ask_to_end(pid)


def _log(sentence: str) -> None:
    with contextlib.suppress(OSError):  # the log is on a full disk
        sys.stderr.write(f"sluice attendant: {sentence}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main()
