"""What a driver shows of its own work: Spark's UI, if it is declared, and event logs, if the deployment keeps them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from py4j.protocol import Py4JError
from pyspark import SparkContext

_log = logging.getLogger(__name__)

_FILTER = "org.apache.spark.ui.JWSFilter"
_EVENT_LOG_FILE = "64m"
"""A log is rolled at this size, so that a history server can compact the older files of a driver that runs for months.
Source: https://spark.apache.org/docs/4.1.0/monitoring.html#applying-compaction-on-rolling-event-log-files"""


def ui_conf(key: str) -> dict[str, str]:
    """The settings of a UI that answers only requests with a token signed with the key, and that ends nothing.

    Every address of the UI, also its REST API, is behind the filter. A heap histogram would stop the JVM for a while.

    Parameters
    ----------
    key: base64url of 32 bytes.

    Source: https://spark.apache.org/docs/4.1.0/security.html#web-ui
    """
    return {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.ui.filters": _FILTER,
        f"spark.{_FILTER}.param.secretKey": key,
        "spark.ui.killEnabled": "false",
        "spark.ui.heapHistogramEnabled": "false",
        # More than a driver without a UI keeps, and still bounded: it runs for months.
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "5000",
        "spark.sql.ui.retainedExecutions": "50",
    }


def event_log_conf(folder: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of event logs. A folder that cannot be made is logged: a stream is worth more than its history.

    Parameters
    ----------
    folder: where they are kept; unset: none are written.
    conf: the settings of the session, with those of its file systems.
    """
    if folder is None or not _is_made(folder, conf):
        return {}
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder,
        "spark.eventLog.compress": "true",
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.rolling.maxFileSize": _EVENT_LOG_FILE,
    }


def _is_made(folder: str, conf: Mapping[str, str]) -> bool:
    """Make the folder: Spark itself refuses to start without it."""
    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    assert jvm is not None  # noqa: S101  # it was started by the line before
    hadoop = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in conf.items():
        if name.startswith("spark.hadoop."):
            hadoop.set(name.removeprefix("spark.hadoop."), value)
    path = jvm.org.apache.hadoop.fs.Path(folder)
    try:
        return bool(path.getFileSystem(hadoop).mkdirs(path))
    except Py4JError as error:
        _log.warning("no event log is written: %s cannot be made: %s", folder, str(error).splitlines()[0])
        return False
