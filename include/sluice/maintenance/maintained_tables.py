"""Finds the declared tables and plans the maintenance of a table. For the job and the CLI.

No expiry may remove the snapshots that static inputs name, by id or by a time, as long as they are declared. An input
that names a tag needs nothing here: Iceberg keeps what a tag is on. A time is found in the history of a table, which
ends where the first snapshot was expired. So the tag of a time holds it in its name, and the input is read from there
once the history has lost it.

A snapshot never changes its files: whether one of its partitions has files to rewrite depends on the snapshot and the
policy, and on nothing that time alone changes; but where recently written partitions were left alone, time changes what
is due, and nothing is taken from that look. A run that found nothing to rewrite therefore records by what it decided
(`StepObservation.basis`), beside the figures that it records anyway. A later look with the same basis takes those, and
decides pins, expiry and all that depends on the time as always. So does one after Spark has rewritten a table and found
nothing to change, unless partitions were left for later: it would find that again. Another commit, another table of
that name, another policy and another version of the program have another basis, and who rewrites files reads the
manifests anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import version

from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations, all_tables, lookups_of
from sluice.declarations.maintenance_declaration import ExpiryDeclaration, MaintenanceDeclaration, RetentionDeclaration
from sluice.declarations.source_declarations import IcebergSource, SnapshotStart
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.connection import Ledger
from sluice.ledger.maintenance_runs import (
    MaintenanceObservation,
    MaintenanceStep,
    StepObservation,
    StepOutcome,
    newest_computed,
    newest_done,
)
from sluice.ledger.refreshes import kept_shadows
from sluice.ledger.runs import live_streams
from sluice.maintenance.compaction_plan import small_file_bytes
from sluice.maintenance.maintenance_plan import MaintenancePlan, expiry_of, plan_maintenance, put_off
from sluice.maintenance.pin_plan import (
    Pin,
    PinKind,
    PinPlan,
    ReaderCost,
    ReaderObservation,
    as_of_label,
    is_tag_of,
    plan_pins,
    reader_costs,
)
from sluice.maintenance.retention_plan import (
    RetentionNeed,
    SnapshotOnMain,
    kept_references,
    need_of,
    plan_retention,
    short_retentions,
)
from sluice.maintenance.row_retention import removal_notes
from sluice.maintenance.step_decision import StepReason
from sluice.maintenance.table_readers import observe_direct_writers, observe_readers, observe_retention, outdated_runs
from sluice.settings import Settings
from sluice.supervision.source_watch import writers_that_defer
from sluice.tables.inspection import observe_table
from sluice.tables.table_observation import FILE_SIZE_EDGES, FileCounts, ReferenceKind, TableObservation

_NOTHING_TO_REWRITE = frozenset({StepReason.FEW_SMALL_FILES, StepReason.NOT_DECLARED})


def named_pins(declarations: Declarations, seen: TableObservation) -> tuple[Pin, ...]:
    """The pins of all static inputs that name a snapshot of a table. A snapshot that is gone already has none."""
    listed = {snapshot.snapshot_id for snapshot in seen.snapshots}
    found = (pin for loaded in declarations.streams.values() for pin in _pins(loaded.declaration, seen))
    return tuple(pin for pin in found if pin.snapshot_id in listed)


def _pins(stream: StreamDeclaration, seen: TableObservation) -> Iterator[Pin]:
    for name, declared in stream.inputs.items():
        source = declared.declared_source.source
        if declared.is_stream or not isinstance(source, IcebergSource) or source.table != seen.table:
            continue
        if source.snapshot_id is not None:
            yield Pin(kind=PinKind.NAMED, stream=stream.stream, endpoint=name, snapshot_id=source.snapshot_id)
        elif source.as_of is not None:
            snapshot_id = _snapshot_at(source.as_of, seen)
            if snapshot_id is not None:
                label = as_of_label(source.as_of)
                yield Pin(kind=PinKind.AS_OF, stream=stream.stream, endpoint=name, snapshot_id=snapshot_id, label=label)


def _snapshot_at(as_of: datetime, seen: TableObservation) -> int | None:
    """The snapshot that was current at a time: the newest of main up to then, or the one that a tag of that time keeps
    where main does not go back as far any more."""
    instant = as_of if as_of.tzinfo is not None else as_of.replace(tzinfo=UTC)
    on_main = (one.snapshot_id for one in seen.main_line if one.committed_at <= instant)
    tagged = (
        ref.snapshot_id for ref in seen.references if ref.kind is ReferenceKind.TAG and is_tag_of(ref.name, as_of)
    )
    return next(tagged, None) or next(on_main, None)


def unreadable_streams(declarations: Declarations) -> frozenset[str]:
    """The streams whose declaration cannot be read now."""
    return frozenset(declarations.stream_names) - frozenset(declarations.streams)


def named_tags(declarations: Declarations, table: str) -> frozenset[str]:
    """The tags of a table that inputs name."""
    inputs = (one for loaded in declarations.streams.values() for one in loaded.declaration.inputs.values())
    sources = (one.declared_source.source for one in inputs)
    return frozenset(
        tag
        for source in sources
        if isinstance(source, IcebergSource) and source.table == table
        for tag in (source.tag, source.starting.tag if isinstance(source.starting, SnapshotStart) else None)
        if tag is not None
    )


def _of_unknown_inputs(
    ledger: Ledger, declarations: Declarations, policy: ExpiryDeclaration | None, *, live_streams: Collection[str]
) -> tuple[str, ...]:
    """The streams that may read any tag of a table where old ones go: their declaration cannot be read, or their run
    carries out an earlier one or one that is gone."""
    if policy is None or (policy.tags is None and policy.branches is None):
        return ()
    undeclared = set(live_streams) - set(declarations.streams)
    outdated = outdated_runs(ledger, declarations, live_streams)
    return tuple(sorted(unreadable_streams(declarations) | undeclared | outdated))


def find_declaration(declarations: Declarations, name: str) -> TableDeclaration:
    """The declaration of a table, its own or the platform's for a quarantine.

    Raises
    ------
    UsageError: when there is none; the message names those that exist.
    DeclarationError: when its file has a problem.
    """
    found = all_tables(declarations).get(name)
    return declarations.table(name).declaration if found is None else found


def plan_table_maintenance(
    ledger: Ledger,
    declarations: Declarations,
    settings: Settings,
    *,
    declaration: TableDeclaration,
    table: Table,
    now: datetime,
    earlier: MaintenanceObservation | None = None,
    agreed: RetentionDeclaration | None = None,
) -> MaintenancePlan:
    """Observe the readers of a table and the table itself, and decide every step of its maintenance.

    The readers are observed first: the table still lists the snapshots that they need, and a reader that advances
    meanwhile needs fewer. When there are some, the table is refreshed after that.

    Parameters
    ----------
    declaration: the table's policy. table: freshly loaded. now: the current time of the database's clock.
    earlier: the newest run of the table, whose counts of files are taken where they still hold; unset: none are.
    agreed: the retention of rows to which a person agrees now; unset for none.

    Raises
    ------
    LedgerError, LakehouseError: when the ledger, which knows the needs of readers, or the table cannot be read.
    """
    name, policy = declaration.table, declaration.maintenance
    readers = _readers(ledger, declarations, settings, table, name)
    newest = table.refresh() if readers else table
    seen = _observed(newest, declaration, now=now, earlier=earlier)
    live, store = live_streams(ledger), settings.object_store
    writers = observe_direct_writers(ledger, declarations, table, name, live_streams=live, object_store=store)
    kept_streams = unreadable_streams(declarations) | live | kept_shadows(ledger)
    named = named_pins(declarations, seen)
    pins = plan_pins(seen=seen, readers=readers, writers=writers, named=named, kept_streams=kept_streams)
    retention = observe_retention(
        ledger,
        declarations,
        newest,
        policy=policy.retention,
        seen=seen,
        readers=readers,
        kept_streams=kept_streams,
        unreadable=unreadable_streams(declarations),
        now=now,
        agreed=agreed,
    )
    unknown = _of_unknown_inputs(ledger, declarations, policy.expiry, live_streams=live)
    plan = plan_maintenance(
        policy=policy,
        seen=seen,
        pins=_with_retention(pins, seen, declaration, table),
        now=now,
        looked_at=None if policy.orphan_removal is None else newest_done(ledger, name, MaintenanceStep.REMOVE_ORPHANS),
        named_tags=None if unknown else named_tags(declarations, name),
        retention=retention,
        computed=None if policy.statistics is None else newest_computed(ledger, name),
    )
    plan = _with_readers(plan, declarations, declaration, table, readers=len(readers), unknown=unknown)
    return put_off(plan, late_writers=writers_that_defer(ledger, declarations, name))


def _readers(
    ledger: Ledger, declarations: Declarations, settings: Settings, table: Table, name: str
) -> tuple[ReaderObservation, ...]:
    listed = tuple(snapshot.snapshot_id for snapshot in table.snapshots())
    return observe_readers(ledger, declarations, name, listed=listed, object_store=settings.object_store)


def _with_readers(
    plan: MaintenancePlan,
    declarations: Declarations,
    declaration: TableDeclaration,
    table: Table,
    *,
    readers: int,
    unknown: Sequence[str],
) -> MaintenancePlan:
    """The plan with what its readers hold back, in figures and in sentences. unknown: those that may read any tag."""
    plan = replace(plan, costs=_costs(plan, declaration), readers=readers)
    policy, now = declaration.maintenance.expiry, plan.seen.observed_at
    kept = kept_references(policy, plan.seen, unknown=unknown, now=now)
    removed = removal_notes(plan.steps, lookups_of(declarations, declaration.table))
    return replace(plan, notes=(*_notes(plan, declaration, table), *removed, *kept))


def _observed(
    table: Table, declaration: TableDeclaration, *, now: datetime, earlier: MaintenanceObservation | None
) -> TableObservation:
    """A table, with the counts of files of its newest run where they still hold."""
    policy, head = declaration.maintenance, table.current_snapshot()
    snapshot_id = head.snapshot_id if head is not None else None
    basis = basis_of(policy, table_uuid=str(table.metadata.table_uuid), snapshot_id=snapshot_id)
    counted, small = counted_files(earlier, basis=basis), small_file_bytes(policy)
    return observe_table(table, name=declaration.table, small_file_bytes=small, now=now, counted=counted)


def _with_retention(pins: PinPlan, seen: TableObservation, declaration: TableDeclaration, table: Table) -> PinPlan:
    """The pins together with the properties by which other tools keep what the readers need."""
    properties = plan_retention(
        properties=table.properties,
        declared=declaration.properties,
        need=_need(pins, seen),
        policy=expiry_of(declaration.maintenance),
    )
    return replace(pins, properties=properties)


def _need(pins: PinPlan, seen: TableObservation) -> RetentionNeed | None:
    line = tuple(SnapshotOnMain(snapshot_id=one.snapshot_id, committed_at=one.committed_at) for one in seen.main_line)
    positions = {pin.snapshot_id for pin in pins.pins if pin.kind is PinKind.POSITION}
    return need_of(positions, main_line=line, now=seen.observed_at)


def _costs(plan: MaintenancePlan, declaration: TableDeclaration) -> tuple[ReaderCost, ...]:
    policy = expiry_of(declaration.maintenance)
    if policy is None:
        return ()
    cutoff = plan.seen.observed_at - policy.older_than
    return reader_costs(plan.seen, plan.pins.pins, cutoff=cutoff, retain_last=policy.retain_last)


def _notes(plan: MaintenancePlan, declaration: TableDeclaration, table: Table) -> Iterator[str]:
    """What a person should know of the readers: what they hold back, and what the table declares too little of."""
    yield from (str(cost) for cost in plan.costs)
    short = short_retentions(
        properties=table.properties, declared=declaration.properties, need=_need(plan.pins, plan.seen)
    )
    yield from (str(one) for one in short)


def basis_of(policy: MaintenanceDeclaration, *, table_uuid: str, snapshot_id: int | None) -> str:
    """By what it is decided that a table has no files to rewrite. The version stands for the rule itself."""
    compaction = "" if policy.compaction is None else policy.compaction.model_dump_json()
    parts = (_version(), FILE_SIZE_EDGES, compaction, table_uuid, snapshot_id)
    return sha256(repr(parts).encode()).hexdigest()


def counted_files(earlier: MaintenanceObservation | None, *, basis: str) -> FileCounts | None:
    """The files as the newest run counted them; none when it had another basis, or files to rewrite.

    Parameters
    ----------
    earlier: the newest run of the table.
    basis: of now.
    """
    step = None if earlier is None else _rewrite_of(earlier)
    if earlier is None or step is None or step.basis != basis:
        return None
    after = earlier.after
    return FileCounts(
        rows=after.rows,
        data_files=after.files,
        data_bytes=after.bytes,
        small_files=after.small_files,
        delete_files=after.delete_files,
        manifests=after.manifests,
        file_sizes=earlier.file_sizes,
    )


def with_basis(
    run: MaintenanceObservation, plan: MaintenancePlan, policy: MaintenanceDeclaration
) -> tuple[StepObservation, ...]:
    """The steps of a run, with the basis where it found nothing to rewrite in the snapshot that it also counted."""
    decided = next((one for one in plan.steps if one.step is MaintenanceStep.REWRITE_DATA_FILES), None)
    is_of_snapshot = plan.seen.snapshot_id is not None and run.after.snapshot == plan.seen.snapshot_id
    if decided is None or not is_of_snapshot:
        return run.operations
    done = _rewrite_of(run)
    is_tried = decided.is_for_spark and not decided.left and done is not None and done.outcome is StepOutcome.DONE
    if decided.reason not in _NOTHING_TO_REWRITE and not is_tried:
        return run.operations
    basis = basis_of(policy, table_uuid=plan.seen.table_uuid, snapshot_id=plan.seen.snapshot_id)
    return tuple(replace(one, basis=basis) if one.step is decided.step else one for one in run.operations)


@cache
def _version() -> str:
    return version("sluice")


def _rewrite_of(run: MaintenanceObservation) -> StepObservation | None:
    return next((one for one in run.operations if one.step is MaintenanceStep.REWRITE_DATA_FILES), None)
