"""Spark's own UI of a driver: its key, and its place in the ledger."""

from __future__ import annotations

import base64
import logging
import os
import secrets
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from sluice.errors import LedgerError
from sluice.launching.launch_settings import LOCAL_IP_VARIABLE, LOOPBACK
from sluice.ledger.connection import Ledger
from sluice.ledger.driver_uis import DriverUi, record_driver_ui
from sluice.ledger.run_values import RunObservation

_log = logging.getLogger(__name__)

_KEY_BYTES = 32
"""Of HMAC-SHA256: as long as its result."""


def new_ui_key(*, is_declared: bool) -> str | None:
    """A key for the UI of this application; none when it is not declared, or would listen on more than loopback.

    It is made here, in the process that uses it, and leaves it by the ledger alone: it is in no command line, no
    environment and no file.
    """
    if not is_declared:
        return None
    if os.environ.get(LOCAL_IP_VARIABLE) != LOOPBACK:
        _log.warning("engine.ui: no UI is served here; it would listen on all addresses of this machine")
        return None
    return base64.urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def record_ui(spark: SparkSession, ledger: Ledger, run: RunObservation, *, key: str) -> None:
    """Record where the session serves its UI. Without the ledger the stream runs all the same."""
    address = spark.sparkContext.uiWebUrl
    port = urlsplit(address).port if address else None
    if port is None:
        _log.warning("engine.ui: Spark serves no UI")
        return
    ui = DriverUi(run_id=run.run_id, port=port, application=spark.sparkContext.applicationId, key=key)
    try:
        record_driver_ui(ledger, run.stream, ui)
    except LedgerError as error:
        _log.warning("the place of the UI could not be recorded: %s", error)
