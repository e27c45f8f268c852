"""A stream's real driver that gets a signal at a named place, the n-th time a batch passes it.

    python -m tests.faults.dying_driver --stream NAME --point staged --occurrence 2 --signal SIGKILL [--without mark]

The settings come from the environment, as for any driver. Before the signal it says the place on its standard output.
SIGKILL ends the driver with its JVM; SIGSTOP stops both until somebody lets them go on. A driver without one of its
guards is there to show that the guard is needed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

import psutil
from pyspark.sql import SparkSession
from tests.faults.guards import Guard, without
from tests.fixtures.soft_references import clear_soft_references
from tests.fixtures.spark_submit import submit_arguments

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.connection import open_ledger
from sluice.ledger.runs import admit_run, record_process
from sluice.processes.host_processes import identity_of
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.settings import Settings, load_settings
from sluice_spark.delivery import staged_publication
from sluice_spark.run.job import recorded_end, run_job
from sluice_spark.run.supervised_run import SupervisedRun


def signal_at(point: CrashPoint, *, occurrence: int, number: signal.Signals) -> Reached:
    """Sends the driver and its JVM a signal when a place is passed for the n-th time, from 1 on.

    The JVM collects its garbage right before, and clears what is only softly held: memory that is short is what stops
    drivers, and also what empties their caches.
    """
    passed = 0
    lock = threading.Lock()  # the ledger's thread passes places too

    def reached(here: CrashPoint) -> None:
        nonlocal passed
        with lock:
            passed += here is point
            is_now = here is point and passed == occurrence
        if is_now:
            clear_soft_references(SparkSession.builder.getOrCreate())
            sys.stdout.write(f"reached {point}\n")
            sys.stdout.flush()
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # a worker of Spark that has just ended
                    child.send_signal(number)
            # To this very thread: a signal to the process is taken by any thread of it, and this one would go on for
            # the milliseconds that a crowded machine needs to wake that thread, long enough for a commit.
            signal.pthread_kill(threading.get_ident(), number)

    return reached


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stream until the signal, or to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--point", type=CrashPoint, required=True)
    parser.add_argument("--occurrence", type=int, default=1)
    parser.add_argument("--signal", default="SIGKILL")
    parser.add_argument("--without", type=Guard, nargs="*", default=[])
    options = parser.parse_args(arguments)
    settings = load_settings()
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(settings, clears_soft_references=True)
    reached = signal_at(options.point, occurrence=options.occurrence, number=signal.Signals[options.signal])
    with without(*options.without):
        return run_job(lambda: _work(settings, options.stream, reached))


def _work(settings: Settings, name: str, reached: Reached) -> None:
    stream = load_declarations(settings.pipelines, only=name).stream(name)
    staged_publication.CLEARED_TOGETHER = 1  # so that few batches pass every place
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        mode, digest = stream.declaration.mode, stream.digest
        run = admit_run(ledger, stream=name, mode=mode, declaration_digest=digest, launched_by="a fault")
        run = record_process(ledger, run.run_id, identity_of(os.getpid()), None)
        with recorded_end(ledger, run.run_id) as say_reason:
            work = SupervisedRun(settings=settings, ledger=ledger, stream=stream, run=run, reached=reached)
            say_reason(work.work())


if __name__ == "__main__":
    sys.exit(main())
