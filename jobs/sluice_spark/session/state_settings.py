"""The settings of streaming state: the state store, the format of the checkpoint, and the number of shuffle partitions.

Every setting that decides about the content of a checkpoint is set here. Spark keeps what it writes into the offset log
at the first start for the life of the checkpoint and ignores later settings of the session. A declaration that was
changed in the meantime is therefore rejected.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import SparkSession

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.run_declaration import StateDeclaration
from sluice.errors import DeclarationError
from sluice_spark.session.checkpoint_metadata import CheckpointState

_log = logging.getLogger(__name__)

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

WATERMARK_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_DEFAULT_WATERMARK_POLICY = "min"

_PROVIDERS = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}
_ROCKSDB_MEMORY_MB = 96
"""The memory that all state stores of a driver share for buffers and caches. It limits native memory, which the Java
heap size does not. The demo's largest state is below 5 MB; the rest of a larger one is read from local disk."""

_BATCHES_TO_RETAIN = 100
"""The number of batches whose offsets, commits and state are kept, and that a stream can be rewound by: at a batch per
second, a minute and a half. Spark's default, set because other modules rely on it."""

_FORMAT_VERSION = 1
"""The format version of state files, Spark 4.1's default; the checkpoint checks read it."""


class PartsReason(StrEnum):
    """Why state has a certain number of partitions."""

    FROZEN = "as in the checkpoint, which keeps the number of its first start"
    DECLARED = "declared"
    CORES = "one per core: every further one slows down small batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateParts:
    """The number of shuffle partitions, which is the number of parts of the state, and its reason."""

    number: int
    reason: PartsReason


def decide_state_parts(*, declared: int | None, frozen: int | None, cores: int) -> StateParts:
    """Decide the number of shuffle partitions. The first start of a stream freezes it in the checkpoint.

    Parameters
    ----------
    declared: the declared number; None leaves it to the platform.
    frozen: the number in the checkpoint; None before the first batch.
    cores: the cores of the application.
    """
    if frozen is not None:
        return StateParts(number=frozen, reason=PartsReason.FROZEN)
    if declared is not None:
        return StateParts(number=declared, reason=PartsReason.DECLARED)
    return StateParts(number=cores, reason=PartsReason.CORES)


def state_conf(state: StateDeclaration) -> dict[str, str]:
    """The Spark settings of the state store and of the checkpoint format.

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
    """Set the number of shuffle partitions of a session.

    Parameters
    ----------
    state: the declared number, if any.
    frozen: the number in the checkpoint; None for a new checkpoint, and for work without one.

    Returns
    -------
    The number and its reason.
    """
    cores = spark.sparkContext.defaultParallelism
    parts = decide_state_parts(declared=state.shuffle_partitions, frozen=frozen, cores=cores)
    spark.conf.set(SHUFFLE_PARTITIONS, str(parts.number))
    return parts


def take_up_state(spark: SparkSession, stream: LoadedStream, found: CheckpointState) -> None:
    """Configure a session for a stream's state: as in its checkpoint, or as declared before the first batch.

    Raises
    ------
    DeclarationError: when the declaration contradicts the checkpoint.
    """
    state = stream.declaration.state
    _require_same(stream, "shuffle_partitions", declared=state.shuffle_partitions, frozen=found.shuffle_partitions)
    provider = {by_class: name for name, by_class in _PROVIDERS.items()}.get(found.frozen_conf.get(PROVIDER, ""))
    _require_same(stream, "provider", declared=state.provider, frozen=provider)
    policy = found.frozen_conf.get(WATERMARK_POLICY)
    declared_policy = stream.declaration.engine.options.get(WATERMARK_POLICY, _DEFAULT_WATERMARK_POLICY)
    _require_same(stream, WATERMARK_POLICY, declared=declared_policy, frozen=policy, within=("engine", "options"))
    for name, value in state_conf(state).items():
        spark.conf.set(name, value)
    parts = choose_shuffle_partitions(spark, state, frozen=found.shuffle_partitions)
    _log.info("shuffle partitions: %d (%s)", parts.number, parts.reason)


def _require_same(
    stream: LoadedStream,
    key: str,
    *,
    declared: int | str | None,
    frozen: int | str | None,
    within: tuple[str, ...] = ("state",),
) -> None:
    if declared is None or frozen is None or declared == frozen:
        return
    path = (*within, key)
    raise DeclarationError(
        f"`{'.'.join(path)}`: {declared} is declared, but the checkpoint has kept its state as {frozen} since its "
        "first start. Spark would continue with that and ignore the declaration.",
        location=stream.location(path),
        next_step=f"Declare {frozen}. To change it, start a new checkpoint: `sluice stream reset {stream.name}`.",
    )
