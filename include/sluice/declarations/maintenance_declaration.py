"""The declared maintenance of a table: retention of rows, compaction, manifests, expiry, orphans, statistics."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import ByteSize, Field, model_validator

from sluice.declarations.scalar_types import (
    LARGEST_INT,
    ColumnName,
    Declared,
    Duration,
    WholeNumber,
    wrong,
)


class RetentionDeclaration(Declared):
    """Which rows a table keeps no longer. A file goes once its newest row is that old; rows without a time stay.

    It holds where both keys are known: one may come from the table, the other one from `maintenance.yaml`.
    """

    column: ColumnName | None = Field(
        None, description="the date or time of a row, by whose years, months, days or hours the table is partitioned"
    )
    older_than: Duration | None = Field(None, description="how old the rows are that go; one day at least")

    @model_validator(mode="after")
    def _spares_the_newest(self) -> Self:
        if self.older_than is not None and self.older_than < timedelta(days=1):
            raise wrong("rows are kept for a day at least", "older_than")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether it says of which column, and how old."""
        return self.column is not None and self.older_than is not None


class CompactionDeclaration(Declared):
    """When small files become large ones."""

    target_file_bytes: ByteSize = Field(
        ByteSize(128 * 1024**2), ge=1024**2, le=1024**4, description="the size of a good file"
    )
    min_input_files: WholeNumber = Field(
        5, gt=1, le=LARGEST_INT, description="fewer small files than this are left alone"
    )
    strategy: Literal["binpack", "sort", "z_order"] = Field(
        "binpack",
        description="put files together; or sort their rows over all of them, too, by the `sort_order`, or by Spark "
        "along a curve through several columns",
    )
    z_order: tuple[ColumnName, ...] | None = Field(
        None, description="of the strategy `z_order`: two or more columns by which queries filter, in any combination"
    )
    max_deleted_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="data files of which delete files of their own hide this share or more are written again by Spark, "
        "once they hide it of a partition; so is every one with deletes in a partition of which shared delete files "
        "or equality deletes list it",
    )
    leave_recent: Duration | None = Field(
        None,
        description="partitions that were written within so long are left alone; for all of them Spark waits while "
        "there are files of an earlier partitioning, or partitions to rewrite by a float, a uuid or binary values",
    )

    @model_validator(mode="after")
    def _z_order_has_columns(self) -> Self:
        columns = self.z_order or ()
        if self.strategy != "z_order":
            if "z_order" in self.model_fields_set:  # a null, too: it would take the columns from an inherited strategy
                raise wrong("is only for `strategy: z_order`", "z_order")
        elif len(columns) < 2:
            raise wrong("two columns or more; rows are sorted by one with `strategy: sort`", "z_order")
        if double := next((name for index, name in enumerate(columns) if name in columns[:index]), None):
            raise wrong(f"the column {double} is named twice", "z_order")
        return self


class ManifestRewriteDeclaration(Declared):
    """When manifests are rewritten."""

    min_manifests: WholeNumber = Field(100, gt=1, le=LARGEST_INT, description="from this many manifests on")


class ExpiryDeclaration(Declared):
    """Which snapshots go; never one that is pinned."""

    older_than: Duration = Field(
        timedelta(days=5), description="those that are older; with a `retention` of rows, a day at least"
    )
    retain_last: WholeNumber = Field(20, gt=0, le=LARGEST_INT, description="of which so many of the newest stay")
    tags: Duration | None = Field(
        None,
        description="tags whose snapshot is older are removed first, but never those of Sluice or those that an input "
        "names. Unset: they stay",
    )
    branches: Duration | None = Field(
        None, description="the same for branches other than main whose newest snapshot is older"
    )


class OrphanRemovalDeclaration(Declared):
    """Which files of writers that have ended go to the trash: those that no table refers to."""

    older_than: Duration = Field(timedelta(days=3), description="those that are older; three days at least")
    every: Duration = Field(timedelta(days=7), description="how often they are looked for, and the trash is emptied")

    @model_validator(mode="after")
    def _spares_files_in_flight(self) -> Self:
        if self.older_than < timedelta(days=3):
            raise wrong("a file that is not yet committed looks like an orphan: at least 3 days", "older_than")
        return self


class StatisticsDeclaration(Declared):
    """Which statistics of the newest snapshot Spark computes, for the planners of engines that read them."""

    columns: tuple[ColumnName, ...] | None = Field(
        None,
        description="of which it estimates how many distinct values they have, which reads them whole; unset: of every "
        "column, `[]`: of none. Of a table with partitions the rows, files and bytes of each are counted, too",
    )
    older_than: Duration = Field(
        timedelta(days=7), description="how long the table may have changed since, before they are computed again"
    )

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        columns = self.columns or ()
        if double := next((name for index, name in enumerate(columns) if name in columns[:index]), None):
            raise wrong(f"the column {double} is named twice", "columns")
        return self


Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]

_DAYS: tuple[Day, ...] = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class MaintenanceWindow(Declared):
    """When the table is maintained. A window that ends before it starts lasts until the next day."""

    start: str = Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", description="from, such as `22:00`")
    end: str = Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", description="until, such as `04:00`")
    days: tuple[Day, ...] = Field(_DAYS, min_length=1, description="the days on which it starts")
    time_zone: str = Field("UTC", description="whose hours these are, such as `Europe/Berlin`")

    @model_validator(mode="after")
    def _is_some_time(self) -> Self:
        if self.start == self.end:
            raise wrong("the window ends when it starts; leave it out to maintain at any time", "end")
        try:
            ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise wrong(f"`{self.time_zone}` is no time zone; `UTC` or `Europe/Berlin` are", "time_zone") from error
        return self

    def holds(self, now: datetime) -> bool:
        """Whether a time lies in the window."""
        local = now.astimezone(ZoneInfo(self.time_zone))
        clock, today, yesterday = f"{local:%H:%M}", _DAYS[local.weekday()], _DAYS[local.weekday() - 1]
        if self.start < self.end:
            return today in self.days and self.start <= clock < self.end
        return (today in self.days and clock >= self.start) or (yesterday in self.days and clock < self.end)

    def __str__(self) -> str:
        days = "" if len(self.days) == len(_DAYS) else f" on {', '.join(self.days)}"
        return f"{self.start} to {self.end} {self.time_zone}{days}"


class MaintenanceDeclaration(Declared):
    """How the table is kept in order; `null` turns a part off."""

    retention: RetentionDeclaration | None = Field(None, description="old rows go; unset: every row stays")
    compaction: CompactionDeclaration | None = Field(
        CompactionDeclaration(), description="small files become large ones"
    )
    manifest_rewrite: ManifestRewriteDeclaration | None = Field(
        ManifestRewriteDeclaration(), description="many manifests become few"
    )
    expiry: ExpiryDeclaration | None = Field(ExpiryDeclaration(), description="old snapshots go")
    orphan_removal: OrphanRemovalDeclaration | None = Field(
        None, description="files that dead writers left behind go to a trash; `{}` turns it on"
    )
    statistics: StatisticsDeclaration | None = Field(
        None, description="distinct values of columns and rows of partitions are counted; `{}` turns it on"
    )
    content_check_bytes: ByteSize = Field(
        ByteSize(512 * 1024**2),
        ge=0,
        le=1024**5,
        description="how much may be read to compare the rows before and after a rewrite; beyond it they are counted",
    )
    window: MaintenanceWindow | None = Field(None, description="when; unset: whenever it is due")

    @property
    def is_any(self) -> bool:
        """Whether there is anything to do at all."""
        steps = (self.compaction, self.manifest_rewrite, self.expiry, self.orphan_removal, self.statistics)
        return any(step is not None for step in steps) or (self.retention is not None and self.retention.is_whole)
