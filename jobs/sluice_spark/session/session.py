"""Opens the Spark session of a job from the deployment's settings.

The settings that must be known before the JVM starts are in `sluice.launching.launch_settings.launch_conf`; none is
secret. The driver itself sets everything else from its own environment, so no secret is ever an argument of a process.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pydantic import SecretStr
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from sluice.declarations.engine_declaration import StateDeclaration
from sluice.launching.launch_settings import is_local
from sluice.settings import CatalogSettings, ObjectStoreSettings, Settings
from sluice_spark.session.jvm import remember_names
from sluice_spark.session.state_settings import choose_shuffle_partitions, state_conf
from sluice_spark.session.versions import require_matching_jars

_log = logging.getLogger(__name__)

_CHECKPOINT_MANAGERS = {
    "file": "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "s3a": "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager",
}

_STOP_TIMEOUT = "60s"
"""How long `query.stop()` may take before it raises; Spark's default waits for ever."""


def open_session(
    settings: Settings, *, name: str, state: StateDeclaration, with_delta: bool = False, cores: int | None = None
) -> SparkSession:
    """Open the job's one Spark session, and see that its jars fit together.

    Parameters
    ----------
    settings: the deployment.
    name: the application's name, as cluster managers show it.
    state: how a stateful stream keeps its state.
    cores: how many the driver may use where it does the work itself; unset leaves it to how it was launched.
    with_delta: whether Delta tables are read or written; its rules then take part in the planning of every query.

    Raises
    ------
    SettingsError: when pyspark, Spark and the jars are of different versions.
    """
    builder = SparkSession.builder.appName(name)
    conf = {**engine_conf(state), **deployment_conf(settings), **_cores_conf(cores)}
    spark = builder.config(map={**(_adding_delta(conf) if with_delta else conf)}).getOrCreate()
    remember_names(spark)
    require_matching_jars(spark)
    choose_shuffle_partitions(spark, state)
    return spark


def _cores_conf(cores: int | None) -> dict[str, str]:
    """The number of cores of a driver that does the work itself; the launch said `local[*]`, or how many at most."""
    if cores is None:
        return {}
    SparkContext._ensure_initialized()  # only the JVM knows what the launch said
    if not is_local(SparkConf().get("spark.master") or ""):
        return {}
    return {"spark.master": f"local[{cores}]"}


def engine_conf(state: StateDeclaration) -> dict[str, str]:
    """How Spark itself works, wherever it runs."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        # The text of a plan names the options of a source, and among Kafka's is a login with its password.
        "spark.sql.redaction.string.regex": r'(?i)(password|secret)\w*\s*=\s*"(?:\\.|[^"\\])*"',
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.streaming.stopTimeout": _STOP_TIMEOUT,
        **state_conf(state),
        # Spark works out the next batch's watermark from the last plan, and does not see through a shuffle that is
        # reused in it: an operator below which all shuffles are reused then keeps its state for ever
        # (decision 0015).
        "spark.sql.exchange.reuse": "false",
        # A driver lives for months: what it remembers of its past for a user interface that is off must stay small.
        "spark.sql.streaming.numRecentProgressUpdates": "4",
        "spark.sql.ui.retainedExecutions": "4",
        "spark.ui.retainedJobs": "4",
        "spark.ui.retainedStages": "4",
        "spark.ui.retainedTasks": "100",
    }


def _adding_delta(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings with Delta's own added: its rules, and Spark's own catalog, in which its readers look tables up.

    Source: https://docs.delta.io/quick-start/#set-up-apache-spark-with-delta-lake
    """
    return {
        **conf,
        "spark.sql.extensions": f"{conf['spark.sql.extensions']},io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",  # of a table's own log, which a driver reads for every batch
    }


def deployment_conf(settings: Settings) -> dict[str, str]:
    """Where the catalog, the object store and the checkpoints are, and the secrets to reach them."""
    return {
        **catalog_conf(settings.catalog, settings.object_store),
        **_s3a_conf(settings.object_store),
        **_checkpoint_conf(settings.checkpoints),
    }


def catalog_conf(catalog: CatalogSettings, store: ObjectStoreSettings) -> dict[str, str]:
    """The Iceberg catalog in Spark's words.

    Source: https://iceberg.apache.org/docs/latest/spark-configuration/#catalog-configuration
    """
    prefix = f"spark.sql.catalog.{catalog.name}"
    options = {
        "type": "rest",
        "uri": catalog.uri,
        "warehouse": catalog.warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        # Every batch must see the tables as they are: a cached table would hide other writers for half a minute, from
        # static inputs and from the look-up of publication keys.
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


def _s3a_conf(store: ObjectStoreSettings) -> dict[str, str]:
    """Hadoop's way to the same store, for files and checkpoints.

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
    """How checkpoint files are written; a scheme that is not listed is left to Spark.

    Why not Spark's own choice: decision 0009.
    """
    scheme = checkpoints.partition("://")[0]
    manager = _CHECKPOINT_MANAGERS.get(scheme)
    return {"spark.sql.streaming.checkpointFileManagerClass": manager} if manager is not None else {}


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None
