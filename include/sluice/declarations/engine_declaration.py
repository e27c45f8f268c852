"""The declared engine of a stream: memory, cores, executors, Spark settings, and where state is kept."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ByteSize, Field, model_validator

from sluice.declarations.engine_options import OptionValue, option_problem
from sluice.declarations.scalar_types import (
    Declared,
    Duration,
    Flag,
    Name,
    WholeNumber,
    wrong,
)

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
    backup_every: Duration | None = Field(None, description="how often the checkpoint is copied to a safe place")


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
