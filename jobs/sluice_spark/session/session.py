"""Opens the Spark session of a job from the deployment's settings, and makes the key to its UI.

The settings that must be known before the JVM starts are in `sluice.launching.launch_settings.launch_conf`; none is
secret. The driver itself sets everything else from its own environment, so no secret is ever an argument of a process.
"""

from __future__ import annotations

import base64
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pydantic import SecretStr
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from sluice.declarations.run_declaration import StateDeclaration
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import LedgerError
from sluice.launching.launch_settings import LOCAL_IP_VARIABLE, LOOPBACK, is_local
from sluice.ledger.connection import Ledger
from sluice.ledger.driver_access import DriverUi, record_driver_ui
from sluice.ledger.run_values import RunObservation
from sluice.settings import CatalogSettings, ObjectStoreSettings, Settings
from sluice_spark.session import worker_daemon
from sluice_spark.session.jvm import remember_names, require_matching_jars, require_token_of_callbacks
from sluice_spark.session.state_settings import choose_shuffle_partitions, state_conf

_log = logging.getLogger(__name__)

_CHECKPOINT_MANAGERS = {
    "file": "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "s3a": "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager",
}

_LOCAL_TRIES = 2
"""How often a task is tried in local mode; on a cluster four times, unless declared otherwise. The second attempt at a
block of values survives a value that ends or stalls its decoder (`sluice.record_values.decoding_apart`)."""

_STOP_TIMEOUT = "60s"
"""Timeout of `query.stop()`. Spark's default waits without a limit."""


def open_session(
    settings: Settings,
    *,
    name: str,
    state: StateDeclaration,
    with_delta: bool = False,
    cores: int | None = None,
    deletes_files: bool = True,
    repeats_tasks: bool = True,
    names_call_sites: bool = True,
    ui_key: str | None = None,
) -> SparkSession:
    """Open the Spark session of a job, and check that the versions of its jars match. The process runs in UTC from then
    on, as its executors do.

    Parameters
    ----------
    settings: the deployment.
    name: the name of the application, as cluster managers show it.
    state: the declared state of a stateful stream.
    with_delta: whether Delta tables are read or written. Delta's rules are then applied to every query.
    cores: the cores of a driver in local mode; None keeps the number of its launch.
    deletes_files: whether Iceberg may delete files of its tables. A stream's driver must not: Iceberg deletes what a
        refused commit has written, and the answer to a commit that landed may be a refusal (decision 0033).
    repeats_tasks: whether a task that failed is tried again in local mode. Tasks that hand records on one by one cannot
        be: Spark refuses that, and its refusal would hide the failure.
    names_call_sites: whether an error of Spark says which line of Python has built the expression that failed. To know
        it, PySpark looks for that line whenever a column is made, which is a third of the time of planning a stream.
    ui_key: signs the requests to Spark's own UI; unset: there is no UI.

    Raises
    ------
    SettingsError: when pyspark, Spark and the jars are of different versions.
    """
    _use_utc()
    builder = SparkSession.builder.appName(name)
    conf = {**engine_conf(state), **deployment_conf(settings), **_local_conf(cores, repeats_tasks=repeats_tasks)}
    conf["spark.python.sql.dataFrameDebugging.enabled"] = str(names_call_sites).lower()
    conf |= {**event_log_conf(settings.event_logs, conf), **(ui_conf(ui_key) if ui_key is not None else {})}
    conf |= deletion_conf(settings.catalog, deletes_files=deletes_files)
    spark = builder.config(map={**(_adding_delta(conf) if with_delta else conf)}).getOrCreate()
    require_token_of_callbacks(spark)
    remember_names(spark)
    require_matching_jars(spark)
    choose_shuffle_partitions(spark, state)
    return spark


def _use_utc() -> None:
    """Set this process's time zone to UTC, whatever the host's is: PySpark converts timestamps through local time, in
    which an hour is missing or occurs twice at each change of daylight-saving time."""
    os.environ["TZ"] = "UTC"
    time.tzset()


def _local_conf(cores: int | None, *, repeats_tasks: bool) -> dict[str, str]:
    """The master of a driver in local mode, with the number of its cores and of a task's tries.

    The launch set `local[*]`, or an upper limit, by which Spark tries a task once.
    """
    SparkContext._ensure_initialized()  # only the JVM knows the settings of the launch
    master = SparkConf().get("spark.master") or ""
    if not is_local(master):
        return {}
    given = master.removeprefix("local").strip("[]").partition(",")
    tries = given[2].strip() or (_LOCAL_TRIES if repeats_tasks else 1)
    return {"spark.master": f"local[{cores or given[0] or 1},{tries}]"}


def engine_conf(state: StateDeclaration) -> dict[str, str]:
    """The settings of Spark that do not depend on the deployment."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        # The text of a plan contains the options of its sources, and Kafka's contain a password.
        "spark.sql.redaction.string.regex": r'(?i)(password|secret)\w*\s*=\s*"(?:\\.|[^"\\])*"',
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.streaming.stopTimeout": _STOP_TIMEOUT,
        **state_conf(state),
        # Spark derives the next batch's watermark from the last plan, and ignores the part of it below a reused
        # shuffle: an operator whose inputs are all reused shuffles never drops its state (decision 0015).
        "spark.sql.exchange.reuse": "false",
        "spark.python.daemon.module": worker_daemon.MODULE,
        # A driver runs for months: the history that it keeps for a disabled user interface must stay small.
        "spark.sql.streaming.numRecentProgressUpdates": "4",
        "spark.sql.ui.retainedExecutions": "4",
        "spark.ui.retainedJobs": "4",
        "spark.ui.retainedStages": "4",
        "spark.ui.retainedTasks": "100",
    }


def _adding_delta(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings with those of Delta: its rules, and the session catalog in which its readers look up tables.

    Source: https://docs.delta.io/quick-start/#set-up-apache-spark-with-delta-lake
    """
    return {
        **conf,
        "spark.sql.extensions": f"{conf['spark.sql.extensions']},io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",  # of a table's own log, which a driver reads for every batch
    }


def deployment_conf(settings: Settings) -> dict[str, str]:
    """The settings of the catalog, the object store and the checkpoints, with their secrets."""
    return {
        **catalog_conf(settings.catalog, settings.object_store),
        **_s3a_conf(settings.object_store),
        **_checkpoint_conf(settings.checkpoints),
    }


def catalog_conf(catalog: CatalogSettings, store: ObjectStoreSettings) -> dict[str, str]:
    """The Spark settings of the Iceberg catalog.

    Source: https://iceberg.apache.org/docs/latest/spark-configuration/#catalog-configuration
    """
    prefix = f"spark.sql.catalog.{catalog.name}"
    options = {
        "type": "rest",
        "uri": catalog.uri,
        "warehouse": catalog.warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        # Every batch must read the current tables: a cached table hides the commits of other writers for half a minute,
        # from static inputs and from the look-up of publication keys.
        "cache-enabled": "false",
        "client.region": store.region,
        "s3.endpoint": store.endpoint,
        "s3.path-style-access": "true" if store.endpoint else None,
        "s3.access-key-id": _revealed(store.access_key_id),
        "s3.secret-access-key": _revealed(store.secret_access_key),
        "credential": _revealed(catalog.credential),
        "rest.auth.type": "oauth2" if catalog.credential else None,
        "oauth2-server-uri": catalog.oauth2_server_uri,
    }
    given = {f"{prefix}.{name}": value for name, value in options.items() if value is not None}
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **given}


def deletion_conf(catalog: CatalogSettings, *, deletes_files: bool) -> dict[str, str]:
    """The setting by which Iceberg may delete files of its tables, which a session's catalog reads at its first use."""
    return {f"spark.sql.catalog.{catalog.name}.s3.delete-enabled": str(deletes_files).lower()}


def _s3a_conf(store: ObjectStoreSettings) -> dict[str, str]:
    """Hadoop's settings of the same object store, for files and checkpoints.

    Source: https://hadoop.apache.org/docs/r3.4.2/hadoop-aws/tools/hadoop-aws/index.html
    """
    options = {
        "endpoint": store.endpoint,
        "endpoint.region": store.region,
        "path.style.access": "true" if store.endpoint else None,
        "connection.ssl.enabled": "false" if (store.endpoint or "").startswith("http://") else None,
        "access.key": _revealed(store.access_key_id),
        "secret.key": _revealed(store.secret_access_key),
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items() if value is not None}


def _checkpoint_conf(checkpoints: str) -> dict[str, str]:
    """The class that writes checkpoint files; schemes that are not listed keep Spark's default.

    Why not Spark's default: decision 0009.
    """
    scheme = checkpoints.partition("://")[0]
    manager = _CHECKPOINT_MANAGERS.get(scheme)
    return {"spark.sql.streaming.checkpointFileManagerClass": manager} if manager is not None else {}


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None


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


class Sessions(Protocol):
    """Opens the session of a run; after the block it is not used any more."""

    def __call__(
        self, settings: Settings, declaration: StreamDeclaration, *, ui_key: str | None
    ) -> AbstractContextManager[SparkSession]: ...


@contextmanager
def own_session(settings: Settings, declaration: StreamDeclaration, *, ui_key: str | None) -> Iterator[SparkSession]:
    """A session whose application ends with the block.

    Parameters
    ----------
    ui_key: as for `open_session`.
    """
    spark = session_of(settings, declaration, ui_key=ui_key)
    try:
        yield spark
    finally:
        spark.stop()


def session_of(settings: Settings, declaration: StreamDeclaration, *, ui_key: str | None) -> SparkSession:
    """Open the session of a stream's driver, as its declaration asks for."""
    return open_session(
        settings,
        name=declaration.stream,
        state=declaration.state,
        with_delta=declaration.uses_delta,
        cores=declaration.engine.cores,
        deletes_files=False,
        repeats_tasks=not declaration.hands_on_records,
        names_call_sites=declaration.runs_python,
        ui_key=ui_key,
    )


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
