"""How a stream runs, as declared: its engine, which is memory, cores, executors, Spark settings and where state is
kept; and its supervision, which is what to do when a run fails, stalls or falls behind.

A driver holds the deployment's secrets, and Spark's settings can name classes, jars, files, catalogs and commands. So
nothing is allowed but what is listed here, and no listed value can be a path, an address, or the name of a class.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ByteSize, Field, model_validator

from sluice.declarations.error_messages import did_you_mean
from sluice.declarations.scalar_types import LARGEST_LONG, Declared, Duration, Flag, Name, WholeNumber, wrong

MOST_PARTITIONS = 100_000
MOST_CORES = 4096
MOST_EXECUTORS = 10_000
MOST_KEPT_MINUTES = 1440
_LARGEST_HEAP_BYTES = 16 * 1024**4
"""Beyond what any machine has: a larger number is a mistake in its unit."""


class StateDeclaration(Declared):
    """Where a stateful stream keeps its state."""

    provider: Literal["rocksdb", "hdfs"] = Field("rocksdb", description="Spark's state store")
    changelog: Flag = Field(True, description="rocksdb: whether a batch writes its changes instead of whole files")
    shuffle_partitions: WholeNumber | None = Field(
        None,
        gt=0,
        le=MOST_PARTITIONS,
        description="parts of the state; frozen in the checkpoint at the first start. Unset: the cores",
    )
    version: int = Field(
        1,
        gt=0,
        description="the version of what is kept: raise it when a change of the code gives kept values another "
        "meaning. A checkpoint of another version is refused",
    )
    backup_every: Duration | None = Field(
        None,
        description="how often a checkpoint with state is copied while its run works; each stop in order copies it "
        "in any case. `sluice stream repair` takes the copy where the state is lost",
    )


_LEAST_HEAP_BYTES = 512 * 1024**2
"""Spark refuses to start with less than 450 MiB, counted after the collector has taken its share."""


class EngineDeclaration(Declared):
    """Where a driver runs, and what it may use. Spark options beyond these are checked against an allow-list."""

    connection: Name | None = Field(
        None, description="the Airflow connection, of type Spark, that says where it runs; unset: `spark_default`"
    )
    driver_memory: ByteSize = Field(
        ByteSize(_LEAST_HEAP_BYTES), ge=_LEAST_HEAP_BYTES, le=_LARGEST_HEAP_BYTES, description="the driver's Java heap"
    )
    cores: WholeNumber | None = Field(
        None,
        gt=0,
        le=MOST_CORES,
        description="cores of the driver in local mode, of each executor on a cluster; unset: what is granted",
    )
    executors: WholeNumber | None = Field(
        None, gt=0, le=MOST_EXECUTORS, description="executors on a cluster; with `most_executors` the least"
    )
    most_executors: WholeNumber | None = Field(
        None, gt=0, le=MOST_EXECUTORS, description="executors on a cluster come and go with the work, up to so many"
    )
    executor_memory: ByteSize | None = Field(
        None, ge=_LEAST_HEAP_BYTES, le=_LARGEST_HEAP_BYTES, description="an executor's Java heap"
    )
    spot_nodes: Flag = Field(
        False,
        description="whether nodes may be taken away: an executor then moves its blocks to others before its node ends",
    )
    ui: Flag = Field(
        False,
        description="whether a driver on the host of Airflow's web server serves Spark's own UI, for the stream's page",
    )
    kept_minutes: WholeNumber = Field(
        0,
        ge=0,
        le=MOST_KEPT_MINUTES,
        description="how long the application of an increment waits for further work, so that the next increment "
        "begins at once; 0: for 15 seconds",
    )
    options: dict[str, OptionValue] = Field(
        default_factory=dict, description="further Spark settings, of those in docs/guides/engine.md"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.most_executors is not None and self.most_executors < (self.executors or 1):
            raise wrong(f"is at least executors, {self.executors}", "most_executors")
        for name, value in self.options.items():
            if problem := option_problem(name, value):
                raise wrong(problem, "options", name)
        return self


def _as_spark_writes(value: object) -> object:
    """YAML reads `true` and `64` as what they are; Spark's settings are texts."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


OptionValue = Annotated[str, BeforeValidator(_as_spark_writes)]

_FLAG = "true|false"
_COUNT = "[0-9]{1,9}"
_FRACTION = r"0?\.[0-9]{1,4}|0|1(\.0)?"
_SIZE = "[0-9]{1,9}[bkm]?|[0-9]{1,6}g|[0-9]{1,3}t"
_TIME = "[0-9]{1,9}(ms|s|m|min|h)?"
_LONGER_THAN_A_HEARTBEAT = "(1[1-9]|[2-9][0-9]|[1-9][0-9]{2,6})s?|[1-9][0-9]{0,5}(m|min|h)"
"""Executors report every ten seconds, and Spark refuses a shorter time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedOption:
    """A setting that a declaration may give. value: a pattern for the whole value. meaning: what it changes."""

    name: str
    value: str
    meaning: str


_SQL = "spark.sql."
_STATE = "spark.sql.streaming.stateStore."

ALLOWED_OPTIONS: tuple[AllowedOption, ...] = (
    # how much is read and sent at a time
    AllowedOption(name=f"{_SQL}autoBroadcastJoinThreshold", value=f"-1|{_SIZE}", meaning="when a join sends its side"),
    AllowedOption(name=f"{_SQL}broadcastTimeout", value=_TIME, meaning="how long a join waits for a side it sends"),
    AllowedOption(name=f"{_SQL}files.maxPartitionBytes", value=_SIZE, meaning="how much a task reads of files"),
    AllowedOption(name=f"{_SQL}files.openCostInBytes", value=_SIZE, meaning="what a file counts beside its bytes"),
    AllowedOption(name=f"{_SQL}files.minPartitionNum", value=_COUNT, meaning="the least tasks that read files"),
    AllowedOption(name=f"{_SQL}join.preferSortMergeJoin", value=_FLAG, meaning="how large sides are joined"),
    AllowedOption(name=f"{_SQL}parquet.compression.codec", value="zstd|snappy|gzip|lz4|none", meaning="files' codec"),
    AllowedOption(name=f"{_SQL}execution.arrow.maxRecordsPerBatch", value=_COUNT, meaning="rows at a time to Python"),
    AllowedOption(name="spark.python.worker.memory", value=_SIZE, meaning="memory of Python before it spills"),
    # adaptive execution, of streams without state
    AllowedOption(name=f"{_SQL}adaptive.enabled", value=_FLAG, meaning="whether a plan adapts while it runs"),
    AllowedOption(name=f"{_SQL}adaptive.coalescePartitions.enabled", value=_FLAG, meaning="whether parts are joined"),
    AllowedOption(name=f"{_SQL}adaptive.skewJoin.enabled", value=_FLAG, meaning="whether large parts are split"),
    AllowedOption(name=f"{_SQL}adaptive.advisoryPartitionSizeInBytes", value=_SIZE, meaning="the size of parts"),
    # batches and state
    AllowedOption(
        name=f"{_SQL}streaming.noDataMicroBatches.enabled",
        value=_FLAG,
        meaning="whether a batch without rows closes windows",
    ),
    AllowedOption(
        name=f"{_SQL}streaming.multipleWatermarkPolicy", value="min|max", meaning="which input's watermark counts"
    ),
    AllowedOption(name=f"{_STATE}minDeltasForSnapshot", value=_COUNT, meaning="changes between whole files of state"),
    AllowedOption(name=f"{_STATE}maintenanceInterval", value=_TIME, meaning="how often old state is cleared"),
    AllowedOption(name=f"{_STATE}rocksdb.blockCacheSizeMB", value=_COUNT, meaning="memory for state that is read"),
    AllowedOption(name=f"{_STATE}rocksdb.writeBufferSizeMB", value=_COUNT, meaning="memory for state that is written"),
    AllowedOption(
        name=f"{_STATE}rocksdb.trackTotalNumberOfRows", value=_FLAG, meaning="whether rows of the state are counted"
    ),
    # memory and patience
    AllowedOption(name="spark.driver.maxResultSize", value=_SIZE, meaning="the most that results may take"),
    AllowedOption(name="spark.driver.memoryOverhead", value=_SIZE, meaning="memory beside the driver's heap"),
    AllowedOption(name="spark.executor.memoryOverhead", value=_SIZE, meaning="memory beside an executor's heap"),
    AllowedOption(name="spark.memory.fraction", value=_FRACTION, meaning="the share for work and kept rows"),
    AllowedOption(name="spark.memory.storageFraction", value=_FRACTION, meaning="the share of that for kept rows"),
    AllowedOption(name="spark.memory.offHeap.enabled", value=_FLAG, meaning="whether work uses memory beside the heap"),
    AllowedOption(name="spark.memory.offHeap.size", value=_SIZE, meaning="how much of it"),
    AllowedOption(
        name="spark.kryoserializer.buffer.max",
        value="[1-9][0-9]{0,6}k|(1?[0-9]{1,3}|20[0-3][0-9]|204[0-7])m?|1g",
        meaning="the largest thing that is sent whole",
    ),
    AllowedOption(name="spark.reducer.maxSizeInFlight", value=_SIZE, meaning="what a task fetches at a time"),
    AllowedOption(name="spark.locality.wait", value=_TIME, meaning="how long a task waits for its place"),
    AllowedOption(
        name="spark.network.timeout", value=_LONGER_THAN_A_HEARTBEAT, meaning="how long an executor may be silent"
    ),
    AllowedOption(name="spark.scheduler.mode", value="FIFO|FAIR", meaning="how jobs share the cores"),
    AllowedOption(name="spark.task.maxFailures", value="[1-9][0-9]{0,8}", meaning="how often a task may fail"),
    AllowedOption(name="spark.dynamicAllocation.executorIdleTimeout", value=_TIME, meaning="when an executor goes"),
    AllowedOption(name="spark.dynamicAllocation.schedulerBacklogTimeout", value=_TIME, meaning="when one is added"),
)

_BY_NAME = {option.name: option for option in ALLOWED_OPTIONS}

_DECLARED_ELSEWHERE = {
    "spark.driver.memory": "write `engine.driver_memory`",
    "spark.driver.cores": "write `engine.cores`",
    "spark.executor.cores": "write `engine.cores`",
    "spark.cores.max": "write `engine.cores` and `engine.executors`",
    "spark.executor.instances": "write `engine.executors`",
    "spark.executor.memory": "write `engine.executor_memory`",
    "spark.dynamicAllocation.enabled": "write `engine.most_executors`",
    "spark.dynamicAllocation.minExecutors": "write `engine.executors`",
    "spark.dynamicAllocation.maxExecutors": "write `engine.most_executors`",
    "spark.decommission.enabled": "write `engine.spot_nodes`",
    "spark.sql.shuffle.partitions": "write `state.shuffle_partitions`",
    "spark.sql.streaming.stateStore.providerClass": "write `state.provider`",
    "spark.sql.streaming.checkpointLocation": "the platform derives it from the stream and its generation",
    "spark.master": "the Spark connection says it",
    "spark.submit.deployMode": "the Spark connection says it",
}


def option_problem(name: str, value: str) -> str:
    """Why a declaration may not give this setting this value; empty when it may. The value itself stays out of the
    sentence: an unknown setting may be a secret.
    """
    if name in _DECLARED_ELSEWHERE:
        return f"this setting is not given here: {_DECLARED_ELSEWHERE[name]}"
    option = _BY_NAME.get(name)
    if option is None:
        hint = did_you_mean(name, _BY_NAME) or "docs/guides/engine.md lists them"
        return f"this is none of the Spark settings that a declaration may give. {hint.rstrip('.')}"
    if re.fullmatch(option.value, value) is None:
        return f"this setting ({option.meaning}) has a value of the form {option.value}"
    return ""


class RestartDeclaration(Declared):
    """How often and how fast a failed run is restarted before the stream is given up."""

    attempts: WholeNumber = Field(
        5,
        ge=0,
        le=1000,
        description="restarts in a row before the stream is given up; the failure's class may allow more or fewer",
    )
    first_delay: Duration = Field(
        timedelta(seconds=5),
        description="the wait before the second restart, which doubles; the first restart is immediate, unless memory "
        "or disk ran out",
    )
    longest_delay: Duration = Field(timedelta(minutes=5), description="the longest wait between restarts")
    stable_after: Duration = Field(
        timedelta(minutes=10), description="a run that stays up for this long resets the count of restarts"
    )

    @model_validator(mode="after")
    def _delays_grow(self) -> Self:
        if self.first_delay > self.longest_delay:
            raise ValueError("first_delay is at most longest_delay")
        return self


class BreakerDeclaration(Declared):
    """When a stream that keeps failing is given up, however its restarts are spread."""

    failures: WholeNumber = Field(gt=0, le=100_000, description="the breaker opens at this many failures")
    window: Duration = Field(description="the time in which the failures are counted")


class LagDeclaration(Declared):
    """How far behind its source a stream may be, and what to do when it is further."""

    rows: WholeNumber | None = Field(None, gt=0, le=LARGEST_LONG, description="at most this many rows")
    duration: Duration | None = Field(None, description="at most this long")
    action: Literal["alert", "restart", "defer_maintenance"] = Field("alert", description="what to do beyond the limit")

    @model_validator(mode="after")
    def _by_something(self) -> Self:
        if self.rows is None and self.duration is None:
            raise ValueError("a lag is bounded by rows, by a duration, or by both")
        return self


class RejectionLimit(Declared):
    """How many rows a stream may reject, and what to do when it rejects more."""

    rows: WholeNumber | None = Field(None, gt=0, le=LARGEST_LONG, description="at most this many rows in the window")
    share: float | None = Field(None, gt=0, lt=1, description="at most this share of the rows that were read in it")
    window: Duration = Field(timedelta(hours=1), description="the time in which rows are counted, up to now")
    action: Literal["warn", "hold", "stop"] = Field(
        "warn",
        description="what to do beyond the limit: `warn` alerts; `hold` also lets the batch with which it is exceeded "
        "wait for a person before it is visible; `stop` also stops the stream until a person starts it",
    )

    @model_validator(mode="after")
    def _by_something(self) -> Self:
        if self.rows is None and self.share is None:
            raise ValueError("rejections are bounded by rows, by a share, or by both")
        return self

    def is_exceeded(self, *, rejected: int, read: int) -> bool:
        """Whether so many rejected rows of those that were read are too many."""
        is_above_rows = self.rows is not None and rejected > self.rows
        return is_above_rows or (self.share is not None and rejected > self.share * read)


class SupervisionDeclaration(Declared):
    """What to do when a run fails, stalls or falls behind."""

    restart: RestartDeclaration = Field(RestartDeclaration(), description="restarts after a failure")
    breaker: BreakerDeclaration | None = Field(
        None, description="when to give up a stream that keeps failing; unset: no breaker"
    )
    stall_after: Duration | None = Field(
        None,
        description="the stream is stalled when a batch takes this long, or input waits this long for one; "
        "unset: derived from its trigger and its recent batches",
    )
    on_stall: Literal["alert", "restart"] = Field(
        "alert", description="what to do about a stalled stream; `restart` needs an input other than a socket"
    )
    max_lag: LagDeclaration | None = Field(
        None, description="how far behind its source the stream may be; for kafka and iceberg inputs"
    )
    max_rejected: RejectionLimit | None = Field(
        None, description="how many rows the stream may reject; what a person has seen, by starting it, counts no more"
    )
