"""Runs the work of a job: logging in one format, and an end that other processes can read.

The exit status is 0 when the job ended as requested, 2 for wrong arguments, settings or declarations, 1 for any other
failure; the line before the last says `sluice: reason: <word>` (`FailureReason`), the last one
`sluice: failed: <ErrorClass>: <message>`.

The loss of the driver's JVM is named for what it is. The driver of a `spark-submit` is a JVM that starts the Python
application. When the JVM is killed, Python finds its connection to it closed, and the next one refused: errors of the
network, without a service that could be unreachable. The attendant of the driver sees the exit status of the JVM and
ends Python at once; only when the attendant was killed first, or Python has started the JVM itself, it is Python that
reports the end. An error that was raised before the JVM was lost keeps its name: it ended the run.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import Popen
from types import TracebackType

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.logger import PySparkLogger

from sluice.errors import JvmKilledError, JvmLostError, LedgerError, MemoryKillError, SluiceError
from sluice.failure_reasons import Failure, FailureReason
from sluice.failures.classification import classify
from sluice.failures.error_chains import chain_of, text_of, with_causes, without_row_values
from sluice.launching.job_output import FAILURE_MARK, REASON_MARK
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import record_end
from sluice.messages import RedactingFormatter, redacted
from sluice.processes.deadline import wait_until
from sluice.processes.driver_watch import MemoryKillWatch
from sluice.settings import take_settings_file
from sluice_spark.delivery.delivery_port import TurnedAwayError
from sluice_spark.session.item_sessions import name_item

_log = logging.getLogger(__name__)

IN_YARN_VARIABLE = "CONTAINER_ID"
"""YARN sets it in each of its containers. Source: `ApplicationConstants.Environment` of Hadoop 3.4."""

_LONGEST_REASON = 600
"""Characters of a reason: a sentence or two. Spark's messages fill pages; they stay in the log."""

_OF_JAVA = "An error occurred while calling "
"""How py4j begins the text of an error of Java; the error itself follows in the next line."""


def run_job(work: Callable[[], None]) -> int:
    """Do the work of a job and return the exit status of its process."""
    _log_to_stderr()
    try:
        with named_jvm_loss():
            take_settings_file()
            work()
            _have_used_spark()
    except Exception as error:  # noqa: BLE001  # the end of the process: any error becomes its exit status and its last line
        if not isinstance(error, SluiceError):
            _log.exception("the job failed")
        sys.stderr.write(f"{last_lines(error)}\n")
        sys.stderr.flush()
        return exit_code_of(error)
    return 0


def _have_used_spark() -> None:
    """Open a Spark context and close it, when an application of a cluster had nothing for Spark to do.

    YARN's application master takes an application that ends without one for failed ("User did not initialize spark
    context", status 13). Source: `ApplicationMaster.runDriver` of Spark 4.1.
    """
    if IN_YARN_VARIABLE in os.environ and SparkContext._gateway is None:
        SparkContext.getOrCreate().stop()


@contextmanager
def recorded_end(ledger: Ledger, run_id: str) -> Iterator[Callable[[str], None]]:
    """Record in the ledger how a run ends: with the reason that the block gives, or with the error that it raises.

    Yields
    ------
    A function that takes the reason of an end without failure.
    """
    reasons: list[str] = []
    try:
        with named_jvm_loss():
            yield reasons.append
    except Exception as error:
        try:
            record_end(
                ledger,
                run_id,
                state=RunState.FAILED,
                exit_code=exit_code_of(error),
                reason=reason_of(error),
                failure=failure_of_error(error),
            )
        except LedgerError as silent:
            # The error of the run is the one to raise; the process that watches this one records its exit.
            _log.warning("the end of the run could not be recorded: %s", silent)
        raise
    record_end(ledger, run_id, state=RunState.FINISHED, exit_code=0, reason="; ".join(reasons))


def last_lines(error: Exception) -> str:
    """The last two lines of a job that failed: the reason, and the error in one line."""
    return f"{REASON_MARK}{failure_of_error(error).reason}\n{FAILURE_MARK}{reason_of(error)}"


def reason_of(error: Exception) -> str:
    """Why a job failed, in one line and without values of rows; the whole text is in its log. For an error of Java that
    PySpark has no class for, it is that error.
    """
    text = text_of(error).strip()
    lines = redacted(without_row_values(text)).splitlines() or [""]
    if text.startswith(_OF_JAVA) and len(chain := chain_of(error)) > 1:
        return f"{chain[1].name}: {without_row_values(chain[1].message)[:_LONGEST_REASON]}"
    return f"{type(error).__name__}: {lines[0][:_LONGEST_REASON]}"


def failure_of_error(error: Exception) -> Failure:
    """The class and the reason of a failure."""
    return classify(chain_of(error))


def exit_code_of(error: Exception) -> int:
    """The exit status that a failure has."""
    return error.exit_code if isinstance(error, SluiceError) else 1


def _log_to_stderr() -> None:
    formatter = RedactingFormatter("%(asctime)s %(levelname)s %(item)s%(message)s", datefmt="%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(name_item)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in ("py4j", "pyspark"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # PySpark logs each error of an analysis by itself too, as one line of JSON with Java's stack, which no formatter of
    # ours redacts. The error reaches the log or the answer anyway.
    for repeated in _LOGGERS_OF_QUERY_CONTEXTS:
        PySparkLogger.getLogger(repeated).disabled = True
    # py4j logs every error of a callback with its traceback; a batch that is turned away is not an error.
    logging.getLogger("py4j.clientserver").addFilter(_is_worth_logging)


_LOGGERS_OF_QUERY_CONTEXTS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Source: `pyspark.errors.exceptions.base` of Spark 4.1."""


def _is_worth_logging(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], TurnedAwayError)


_ENDED_WITHIN_SECONDS = 5.0
"""How long a JVM may take to end after it has closed its connections: it frees its memory meanwhile."""

_ATTENDANT_SECONDS = 2.0
"""How long the attendant has the first word, because it knows the exit status. It takes milliseconds, and ends this
process by that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jvm:
    """The JVM of this process. parent_pid: the parent when the work began, which is the JVM under `spark-submit`."""

    parent_pid: int

    @property
    def child(self) -> Popen[bytes] | None:
        """The JVM as a child of this process; none under `spark-submit`, whose JVM is the parent."""
        gateway = SparkContext._gateway
        return getattr(gateway, "proc", None)

    def is_gone(self) -> bool:
        """Whether it has ended. A parent that has ended is replaced by another one at once."""
        child = self.child
        return os.getppid() != self.parent_pid if child is None else child.poll() is not None


@contextmanager
def named_jvm_loss() -> Iterator[None]:
    """Replace the errors of a lost JVM by one that names the loss; all others pass unchanged.

    Raises
    ------
    JvmKilledError: when a signal ended the JVM, or it ended without a trace.
    MemoryKillError: when the kernel killed the JVM or a worker because memory ran out.
    JvmLostError: when the JVM ended by itself, or does not answer any more.
    Exception: what ended the run before the JVM was lost, without the errors of cleaning up after that.
    """
    jvm, kills = _Jvm(parent_pid=os.getppid()), MemoryKillWatch().start()
    try:
        yield
    except Exception as error:
        is_gone = _may_be_loss(error) and wait_until(jvm.is_gone, bool, seconds=_ENDED_WITHIN_SECONDS)
        if (earlier := error_before_loss(error, is_gone=is_gone)) is None:
            raise _loss(jvm, kills, is_gone=is_gone) from error
        if kills.has_killed() and classify(chain_of(earlier)).reason is FailureReason.WORKER_DIED:
            raise _memory_kill("a worker of Spark") from error
        if earlier is error:
            raise
        raise earlier from earlier.__cause__
    finally:
        kills.stop()


def error_before_loss(error: BaseException, *, is_gone: bool) -> BaseException | None:
    """The error that came before the connection to the JVM broke; none when the broken connection is the cause.

    Parameters
    ----------
    is_gone: whether the JVM has ended. Then py4j's error without a cause, with which it also reports a method that does
        not exist, is one of a broken connection: py4j logs the cause and drops it.

    Returns
    -------
    The error itself when its connection to the JVM is not among its causes.
    """
    causes = list(with_causes(error))
    lost = [
        number for number, one in enumerate(causes) if _is_lost_connection(one) or (is_gone and _is_without_cause(one))
    ]
    before = causes[lost[-1] + 1 :] if lost else causes
    return next((one for one in before if not (lost and _is_internal(one))), None)


def _may_be_loss(error: BaseException) -> bool:
    return any(_is_lost_connection(one) or _is_without_cause(one) for one in with_causes(error))


def _loss(jvm: _Jvm, kills: MemoryKillWatch, *, is_gone: bool) -> JvmLostError:
    if not is_gone:
        return JvmLostError("The JVM of the driver lives, and its connection is lost.")
    if jvm.child is not None:
        return _named_end(jvm.child.returncode, kills)
    has_killed = kills.has_killed()
    time.sleep(_ATTENDANT_SECONDS)  # what is awaited is the end of this process, by its attendant
    if has_killed:
        return _memory_kill("the JVM of the driver")
    return JvmKilledError("The JVM of the driver was killed: it is gone, and its connection broke off.")


def _named_end(exit_code: int, kills: MemoryKillWatch) -> JvmLostError:
    if exit_code == -signal.SIGKILL and kills.has_killed():
        return _memory_kill("the JVM of the driver")
    if exit_code < 0:
        return JvmKilledError(f"The JVM of the driver was killed by {signal.Signals(-exit_code).name}.")
    return JvmLostError(f"The JVM of the driver ended by itself, with the exit code {exit_code}.")


def _memory_kill(process: str) -> MemoryKillError:
    return MemoryKillError(f"The kernel killed {process}, because memory ran out.")


def _is_lost_connection(error: BaseException) -> bool:
    is_broken = isinstance(error, Py4JNetworkError | ConnectionError | EOFError)
    return is_broken and any(module.startswith("py4j.") for module in _modules(error))


def _is_without_cause(error: BaseException) -> bool:
    return type(error) is Py4JError


def _is_internal(error: BaseException) -> bool:
    """Whether py4j raised and caught an error itself, such as the one of an empty pool before it opens a connection."""
    raised_in = next(reversed(_modules(error)), "")
    return raised_in.startswith("py4j.") and not isinstance(error, Py4JJavaError)


def _modules(error: BaseException) -> list[str]:
    """The modules whose functions an error passed through, the one that raised it last."""
    return [str(frame.tb_frame.f_globals.get("__name__", "")) for frame in _frames(error)]


def _frames(error: BaseException) -> Iterator[TracebackType]:
    frame = error.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next
