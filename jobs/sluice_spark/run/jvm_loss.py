"""Names the loss of a driver's JVM for what it is.

The driver of a `spark-submit` is a JVM that starts the Python application. When the JVM is killed, Python finds its
connection to it closed, and the next one refused: errors of the network, without a service that could be unreachable.
The attendant of the driver sees the exit status of the JVM and ends Python at once; only when the attendant was killed
first, or Python has started the JVM itself, it is Python that reports the end.

An error that was raised before the JVM was lost keeps its name: it ended the run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import Popen
from types import TracebackType

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext

from sluice.errors import JvmKilledError, JvmLostError, MemoryKillError
from sluice.failure_reasons import FailureReason
from sluice.failures.classification import classify
from sluice.failures.error_chains import chain_of, with_causes
from sluice.processes.deadline import wait_until
from sluice.processes.memory_kills import MemoryKillWatch

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
