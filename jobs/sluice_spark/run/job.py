"""Runs the work of a job: logging in one format, and an end that other processes can read.

The exit status is 0 when the job ended as requested, 2 for wrong arguments, settings or declarations, 1 for any other
failure; the line before the last says `sluice: reason: <word>` (`FailureReason`), the last one
`sluice: failed: <ErrorClass>: <message>`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext

from sluice.errors import LedgerError, SluiceError
from sluice.failure_reasons import Failure
from sluice.failures.classification import classify
from sluice.failures.error_chains import chain_of, text_of
from sluice.launching.job_output import FAILURE_MARK, REASON_MARK
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import record_end
from sluice.messages.redaction import RedactingFormatter, redacted
from sluice_spark.delivery.delivery_context import TurnedAwayError
from sluice_spark.run.jvm_loss import named_jvm_loss
from sluice_spark.session.item_context import name_item

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
    """Why a job failed, in one line: for an error of Java that PySpark has no class for, that error."""
    lines = redacted(text_of(error)).strip().splitlines() or [""]
    if lines[0].startswith(_OF_JAVA) and len(chain := chain_of(error)) > 1:
        return f"{chain[1].name}: {chain[1].message[:_LONGEST_REASON]}"
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
    # py4j logs every error of a callback with its traceback; a batch that is turned away is not an error.
    logging.getLogger("py4j.clientserver").addFilter(_is_worth_logging)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], TurnedAwayError)
