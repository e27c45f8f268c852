"""How streams keep their state: the state store, the form of the checkpoint, and in how many parts.

Everything that decides what lies in a checkpoint is set here and nowhere else. What Spark writes into the offset log
at the first start stays as it is for the life of the checkpoint, whatever the session says later; so a declaration that
was changed meanwhile is refused instead of ignored.
"""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from sluice.checkpoints.state_parts import StateParts, decide_state_parts
from sluice.declarations.engine_declaration import StateDeclaration
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import DeclarationError
from sluice_spark.session.checkpoint_metadata import CheckpointState

_log = logging.getLogger(__name__)

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_PROVIDERS = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}
_ROCKSDB_MEMORY_MB = 96
"""What all state stores of a driver share for their buffers and caches. It bounds native memory, which the Java heap
does not; the demo's largest state is under 5 MB, and a larger one is read from local disk beyond it."""

_BATCHES_TO_RETAIN = 100
"""So many batches of offsets, commits and state are kept: as far back as a stream can be rewound in its checkpoint, and
at a batch a second a minute and a half. Spark's own default, written down because other parts count on it."""

_FORMAT_VERSION = 1
"""Spark 4.1's default form of state files; the checks of checkpoints read it."""


def state_conf(state: StateDeclaration) -> dict[str, str]:
    """The settings of the state store and of the checkpoint's form.

    Source: https://spark.apache.org/docs/4.1.0/streaming/apis-on-dataframes-and-datasets.html#state-store
    """
    store = "spark.sql.streaming.stateStore"
    return {
        PROVIDER: _PROVIDERS[state.provider],
        f"{store}.rocksdb.changelogCheckpointing.enabled": str(state.changelog).lower(),
        f"{store}.rocksdb.boundedMemoryUsage": "true",
        f"{store}.rocksdb.maxMemoryUsageMB": str(_ROCKSDB_MEMORY_MB),
        f"{store}.checkpointFormatVersion": str(_FORMAT_VERSION),
        "spark.sql.streaming.minBatchesToRetain": str(_BATCHES_TO_RETAIN),
    }


def choose_shuffle_partitions(spark: SparkSession, state: StateDeclaration, *, frozen: int | None = None) -> StateParts:
    """Set in how many parts rows are shuffled, and say why.

    Parameters
    ----------
    frozen: the number that a checkpoint says; unset for a new one, and for work without a checkpoint.
    """
    cores = spark.sparkContext.defaultParallelism
    parts = decide_state_parts(declared=state.shuffle_partitions, frozen=frozen, cores=cores)
    spark.conf.set(SHUFFLE_PARTITIONS, str(parts.number))
    return parts


def take_up_state(spark: SparkSession, stream: LoadedStream, found: CheckpointState) -> None:
    """Set a session to a stream's state: as the checkpoint has it, or as declared when there is none yet.

    Raises
    ------
    DeclarationError: when the declaration asks for what the checkpoint cannot become.
    """
    state = stream.declaration.state
    _require_same(stream, "shuffle_partitions", declared=state.shuffle_partitions, frozen=found.shuffle_partitions)
    provider = {by_class: name for name, by_class in _PROVIDERS.items()}.get(found.frozen_conf.get(PROVIDER, ""))
    _require_same(stream, "provider", declared=state.provider, frozen=provider)
    for name, value in state_conf(state).items():
        spark.conf.set(name, value)
    parts = choose_shuffle_partitions(spark, state, frozen=found.shuffle_partitions)
    _log.info("shuffle partitions: %d (%s)", parts.number, parts.reason)


def _require_same(stream: LoadedStream, key: str, *, declared: int | str | None, frozen: int | str | None) -> None:
    if declared is None or frozen is None or declared == frozen:
        return
    raise DeclarationError(
        f"`state.{key}`: {declared} is declared, and the checkpoint keeps its state as {frozen} since its first start; "
        "Spark would go on with that and not say so.",
        location=stream.location(("state", key)),
        next_step=f"Write {frozen}. To change it, leave the checkpoint behind: `sluice stream reset {stream.name}`.",
    )
