"""Observes what a refresh depends on: the inputs from their beginning, the table, its readers, earlier refreshes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

from sluice.backfill.backfill_plan import TargetReader
from sluice.backfill.intervals import Interval
from sluice.backfill.observe_backfill import other_writers_of, readers_of
from sluice.backfill.old_input_rows import shortened_lookups
from sluice.checkpoints.compatibility import fingerprint_of
from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.source_declarations import FilesSource, IcebergSource, KafkaSource
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.errors import SluiceError
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.ledger.batches import rejections_of
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.generations import GenerationObservation, find_generation
from sluice.ledger.held_batches import find_held
from sluice.ledger.refreshes import newest_refresh
from sluice.publication.marks import load_target_state
from sluice.publication.staged_batch import StagedOutput, staged_outputs
from sluice.refresh.refresh_plan import InputToRead, RefreshTargetObservation, not_yet
from sluice.settings import KafkaConnection, Settings
from sluice.sources.source_identities import NONE_KNOWN, replaced_inputs
from sluice.sources.table_starts import ObservedStart, observe_starts
from sluice.sources.topic_starts import missing_from_beginning
from sluice.tables.catalog import catalog_refusals

_MERGE_MODE = "write.merge.mode"

_ATTEMPTS = 200
"""So many of the newest attempts to backfill are looked at."""

KEEPS = timedelta(days=7)
"""How long the earlier content is kept after a refresh unless a person says otherwise."""


def refreshed_outputs(declaration: StreamDeclaration) -> tuple[StagedOutput, ...]:
    """The outputs whose tables a refresh exchanges: the one that is declared, and then the quarantine."""
    return (
        refreshed_output(declaration),
        *(one for one in staged_outputs(declaration) if one.output == QUARANTINE_OUTPUT),
    )


def refreshed_output(declaration: StreamDeclaration) -> StagedOutput:
    """The one output of a stream that can be refreshed."""
    name, declared = next(iter(declaration.outputs.items()))
    target = declared.iceberg.table if declared.iceberg is not None else ""
    return StagedOutput(stream=declaration.stream, output=name, target=target)


def observe_refresh(
    catalog: Catalog,
    ledger: Ledger,
    declarations: Declarations,
    stream: LoadedStream,
    settings: Settings,
    *,
    keeps: timedelta = KEEPS,
) -> RefreshTargetObservation:
    """Observe what a refresh of a stream depends on. Nothing is changed. Of a stream that no refresh handles yet, its
    tables and inputs are not looked at.

    Raises
    ------
    DeliveryError: when the mark of the stream cannot be read.
    LakehouseError, LedgerError: when the table or the ledger cannot be reached.
    """
    declaration = stream.declaration
    generation = find_generation(ledger, stream.name)
    is_handled = not any(True for _ in not_yet(declaration))
    output = refreshed_output(declaration) if is_handled else None
    state = load_target_state(catalog, output) if output is not None else None
    table = state.table if state is not None else None
    position = state.position(output) if state is not None and output is not None and state.mark is not None else None
    inputs: tuple[InputToRead, ...] = ()
    if is_handled:
        another = _replaced(declaration, generation, settings, catalog)
        inputs = tuple(_inputs(declaration, settings, now=database_time(ledger), another=another))
    return RefreshTargetObservation(
        declaration=declaration,
        digest=stream.digest,
        keeps=keeps,
        target=output.target if output is not None else "",
        generation=None if generation is None else generation.generation,
        has_published=position is not None and position.end_offsets_digest is not None,
        rows=None if table is None else rows_of(table),
        merges_on_read=table is not None and merges_on_read(table, declaration),
        delete_files=0 if table is None else delete_files_of(table),
        inputs=inputs,
        readers=tuple(_readers(declarations, declaration)) if is_handled else (),
        other_writers=_others(declarations, table, output),
        newest=newest_refresh(ledger, stream.name),
        rejections=rejections_of(ledger, stream.name),
        changed_inputs=() if generation is None else changed_inputs(declaration, generation.fingerprint),
        backfilled=tuple(_backfilled(ledger, stream.name)),
        held=find_held(ledger, stream.name),
        lookups=tuple(shortened_lookups(declaration, catalog)) if is_handled else (),
    )


def _replaced(
    declaration: StreamDeclaration, generation: GenerationObservation | None, settings: Settings, catalog: Catalog
) -> Mapping[str, str]:
    known = NONE_KNOWN if generation is None else generation.identities
    try:
        return replaced_inputs(declaration, known, settings, catalog)
    except SluiceError:  # what an input that does not answer says is the problem of that input
        return {}


def _backfilled(ledger: Ledger, stream: str) -> list[Interval]:
    """The intervals that backfills have replaced, oldest first."""
    published = (
        one for one in recent_attempts(ledger, stream, limit=_ATTEMPTS) if one.state is BackfillState.PUBLISHED
    )
    found = {Interval(start=one.key.interval_start, end=one.key.interval_end) for one in published}
    return sorted(found, key=lambda interval: interval.start)


def changed_inputs(declaration: StreamDeclaration, recorded: Mapping[str, str]) -> tuple[str, ...]:
    """The inputs of a stream that are not those of its checkpoint: how far the stream has read says nothing of them.

    Parameters
    ----------
    recorded: the fingerprint of the checkpoint.
    """
    if not recorded:  # a checkpoint before its first start is bound to nothing
        return ()
    now = fingerprint_of(declaration)
    names = (name for name, declared in declaration.inputs.items() if declared.is_stream)
    return tuple(name for name in names if recorded.get(f"input {name}") != now.get(f"input {name}"))


def _readers(declarations: Declarations, declaration: StreamDeclaration) -> Iterator[TargetReader]:
    """Who reads a table that is exchanged."""
    for output in refreshed_outputs(declaration):
        yield from readers_of(declarations, output.target)


def _others(declarations: Declarations, table: Table | None, output: StagedOutput | None) -> tuple[str, ...]:
    return () if table is None or output is None else tuple(other_writers_of(declarations, table, output))


def _inputs(
    declaration: StreamDeclaration, settings: Settings, *, now: datetime, another: Mapping[str, str]
) -> Iterator[InputToRead]:
    """another: why an input is not any more what the stream has read, by its name."""
    starts = observe_starts(declaration, settings, now=now)
    for name, declared in declaration.inputs.items():
        if declared.is_stream:
            found = _input(name, declared, settings, starts)
            yield replace(found, problem=another[name]) if name in another else found


def _input(
    name: str, declared: InputDeclaration, settings: Settings, starts: Mapping[str, ObservedStart]
) -> InputToRead:
    source = declared.declared_source.source
    if isinstance(source, IcebergSource):
        return _iceberg_input(name, source, starts[name])
    if isinstance(source, FilesSource):
        gone = (
            ""
            if source.afterwards == "keep"
            else f"what was read is gone from there (`afterwards: {source.afterwards}`)"
        )
        return InputToRead(input=name, what=f"every file that lies below {source.path or 'its folder'}", problem=gone)
    assert isinstance(source, KafkaSource)  # noqa: S101  # `not_yet` refuses all others
    return _kafka_input(name, source, settings)


def _iceberg_input(name: str, source: IcebergSource, start: ObservedStart) -> InputToRead:
    is_missing = start.missing is not None and source.starting == "table"
    problem = start.refusal or start.problem or (f"of {source.table}, {start.missing}" if is_missing else "")
    if source.starting == "latest":
        problem = "it is declared to begin with what comes (`starting: latest`)"
    rows = start.amount.rows if start.amount is not None else None
    size = start.amount.data_bytes if start.amount is not None else None
    begins = "every row of" if source.starting == "table" else "what was appended since the declared start to"
    return InputToRead(input=name, what=f"{begins} {source.table}", rows=rows, data_bytes=size, problem=problem)


def _kafka_input(name: str, source: KafkaSource, settings: Settings) -> InputToRead:
    what = "every record from the declared start on"
    if source.starting == "latest":
        problem = "it is declared to begin with what comes (`starting: latest`)"
        return InputToRead(input=name, what=what, problem=problem)
    from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

    try:
        topics = KafkaTopics(settings.connection(source.connection, KafkaConnection))
        found = missing_from_beginning(topics, source)
    except SluiceError as error:
        return InputToRead(input=name, what=what, problem=error.message.rstrip("."))
    return InputToRead(input=name, what=what, rows=found.rows, problem="; ".join(found.missing))


def rows_of(table: Table) -> int | None:
    """The rows of the newest snapshot as its summary counts them; none when it does not say, 0 without a snapshot."""
    newest = table.current_snapshot()
    if newest is None:
        return 0
    counted = newest.summary.additional_properties.get("total-records") if newest.summary is not None else None
    return None if counted is None else int(counted)


def delete_files_of(table: Table) -> int:
    """How many live delete files the newest snapshot has.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    newest = table.current_snapshot()
    if newest is None:
        return 0
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        return sum(
            len(manifest.fetch_manifest_entry(table.io, discard_deleted=True))
            for manifest in newest.manifests(table.io)
            if manifest.content == ManifestContent.DELETES
        )


def merges_on_read(table: Table, declaration: StreamDeclaration) -> bool:
    """Whether a stream merges into a table whose MERGE writes delete files."""
    tables = (declared.iceberg for declared in declaration.outputs.values())
    is_merged = any(one is not None and one.mode == "merge" for one in tables)
    return is_merged and table.properties.get(_MERGE_MODE, "copy-on-write") != "copy-on-write"
