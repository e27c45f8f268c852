"""Takes one guard of a publication out of a driver, so that a drill can show what happens without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from pyiceberg.catalog import Catalog
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetPropertiesUpdate
from pyspark.sql import SparkSession
from tests.fixtures.tampering import Change, Requirements, Updates, tampered, without_requirement

from sluice.publication.marks import TargetState
from sluice.settings import Settings
from sluice.stored_keys import MARK_PROPERTY_PREFIX
from sluice.tables.catalog import open_catalog
from sluice_spark.delivery import publisher, staged_delivery
from sluice_spark.delivery.publisher import CheckedTarget, FencedMerge
from sluice_spark.run.stop_request import LEASE_ENDS, StopReason, StopRequest

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_USUAL_EXPIRY_MS = "30000"
"""How long Iceberg's Spark catalog caches a table object by default."""


class Guard(StrEnum):
    """What keeps a batch from becoming visible twice.

    MARK: the property that moves with the batch's commit.
    COMPARISON: the commit's requirement that main is where it was checked.
    KEPT_TABLE: the merge's table object, which never gives way to a newer one.
    HELD_TABLE: the reference to that object, without which a garbage collection takes it.
    LEASE_STOP: that a driver stops as soon as it learns that its lease is lost. It may learn it too late.
    """

    MARK = "mark"
    COMPARISON = "comparison"
    KEPT_TABLE = "kept_table"
    HELD_TABLE = "held_table"
    LEASE_STOP = "lease_stop"


@contextmanager
def without(*guards: Guard | None) -> Iterator[None]:
    """Drivers of this process have all guards but these while the block runs."""
    with ExitStack() as taken_out:
        for guard in guards:
            if guard is not None:
                taken_out.enter_context(_taken_out(guard))
        yield


def _taken_out(guard: Guard) -> Any:
    match guard:
        case Guard.MARK:
            return patch.object(staged_delivery, "open_catalog", _opening(_without_moved_mark))
        case Guard.COMPARISON:
            return patch.object(staged_delivery, "open_catalog", _opening(without_requirement(AssertRefSnapshotId)))
        case Guard.KEPT_TABLE:
            return patch.object(FencedMerge, "_fenced_session", _usual_session)
        case Guard.HELD_TABLE:
            return patch.object(publisher, "CheckedTarget", _not_held)
        case Guard.LEASE_STOP:
            return patch.object(StopRequest, "make", _not_for_its_lease)


def _opening(change: Change) -> Any:
    def open_tampered(settings: Settings) -> Catalog:
        return tampered(open_catalog(settings), change=change)

    return open_tampered


def _without_moved_mark(requirements: Requirements, updates: Updates) -> tuple[Requirements, Updates]:
    """A commit that brings files leaves the mark where it was; opening and taking over move it as ever."""
    brings_files = any(isinstance(one, AddSnapshotUpdate) and _adds_files(one) for one in updates)
    return requirements, tuple(one for one in updates if not (brings_files and _moves_mark(one)))


def _adds_files(update: AddSnapshotUpdate) -> bool:
    summary = update.snapshot.summary
    return summary is not None and int(summary.additional_properties.get("added-data-files", 0)) > 0


def _moves_mark(update: Any) -> bool:
    return isinstance(update, SetPropertiesUpdate) and any(
        name.startswith(MARK_PROPERTY_PREFIX) for name in update.updates
    )


def _not_held(*, state: TargetState, held: object) -> CheckedTarget:
    return CheckedTarget(state=state, held=cast("JavaObject", None))


_make = StopRequest.make


def _not_for_its_lease(stop: StopRequest, reason: StopReason) -> None:
    if reason not in LEASE_ENDS:
        _make(stop, reason)


def _usual_session(merge: FencedMerge) -> SparkSession:
    if merge._session is None:
        session = merge.spark.newSession()
        session.conf.set(f"spark.sql.catalog.{merge.catalog.name}.cache-enabled", "true")
        session.conf.set(f"spark.sql.catalog.{merge.catalog.name}.cache.expiration-interval-ms", _USUAL_EXPIRY_MS)
        merge._session = session
    return merge._session
