"""Decides whether the table of a stream can be rebuilt from its sources now; says what it reads, and why it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from sluice.backfill.backfill_plan import TargetReader, readers_that_stop
from sluice.backfill.intervals import Interval
from sluice.backfill.read_bounds import ShortenedLookup
from sluice.declarations.source_declarations import FilesSource, IcebergSource, KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.batches import BatchObservation
from sluice.ledger.held_batches import HeldBatch
from sluice.ledger.refreshes import OPEN_STATES, RefreshObservation, RefreshState
from sluice.operations import NO_FEWER, OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.publication.batch_rejection import name_of, returning_sentence
from sluice.tables.manifest_reading import statement_without_delete_files

_MOST_NAMED = 5
"""How many intervals a sentence names."""

REFRESHED_MODES = ("append", "merge")

_READ_AGAIN = (KafkaSource, FilesSource, IcebergSource)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputToRead:
    """What is read of an input from which rows arrive, and what of it is gone.

    what: for a person, for example `every row of silver.flights`. rows, data_bytes: unset when they are unknown.
    problem: why it cannot be read from its beginning, with the oldest that is left; empty when it can.
    """

    input: str
    what: str
    rows: int | None = None
    data_bytes: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshTargetObservation:
    """What was seen before a refresh.

    digest: of the declaration. generation: of the stream; unset before its first run.
    has_published: whether a batch of it is visible. rows: of the table now.
    merges_on_read, delete_files: whether the table's MERGE writes delete files, and how many there are.
    newest: the newest refresh of the stream.
    rejections: the batches of the stream that a person rejected.
    changed_inputs: those that are not the inputs of the stream's checkpoint any more.
    backfilled: the intervals that were backfilled in its open generation or before, oldest first.
    held: the batch of the stream that waits for a person, if any.
    lookups: the static inputs whose tables have removed old rows.
    """

    declaration: StreamDeclaration
    digest: str
    keeps: timedelta
    target: str
    generation: int | None
    has_published: bool
    rows: int | None
    merges_on_read: bool
    delete_files: int
    inputs: tuple[InputToRead, ...]
    readers: tuple[TargetReader, ...]
    other_writers: tuple[str, ...]
    newest: RefreshObservation | None
    rejections: tuple[BatchObservation, ...] = ()
    changed_inputs: tuple[str, ...] = ()
    backfilled: tuple[Interval, ...] = ()
    held: HeldBatch | None = None
    lookups: tuple[ShortenedLookup, ...] = ()

    @property
    def continues(self) -> RefreshObservation | None:
        """The open refresh, if any."""
        return self.newest if self.newest is not None and self.newest.state in OPEN_STATES else None


RefreshPlan = OperationPlan[RefreshTargetObservation]


def meaning_of(reader: TargetReader) -> str:
    """What the overwrite of the whole table means to a reader."""
    if reader.on_overwrite != "skip":
        return reader.meaning
    who = f"{reader.stream} (input {reader.input})"
    return f"{who} leaves the overwrite out: its own tables keep what they hold until they are refreshed or backfilled"


def plan_refresh(seen: RefreshTargetObservation) -> RefreshPlan:
    """Decide whether a table can be refreshed now, and whether an open refresh continues."""
    newest, continues = seen.newest, seen.continues
    if newest is not None and newest.state is RefreshState.SWAPPED and newest.ended_at is None:
        step = f"Complete refresh {newest.number}: its content is visible, and what it was built in is dropped."
        return OperationPlan(
            verb=OperationVerb.REFRESH,
            subject=seen.declaration.stream,
            part=f"refresh {newest.number}",
            seen=seen,
            steps=steps_of(step),
        )
    unhandled = tuple(not_yet(seen.declaration))  # of such a stream no table and no input was looked at
    return OperationPlan(
        verb=OperationVerb.REFRESH,
        subject=seen.declaration.stream,
        seen=seen,
        steps=() if unhandled else steps_of(*_sentences(seen)),
        refusals=(*unhandled, *_other_refresh(seen)) if unhandled else tuple(_refusals(seen)),
        at_stake=Stake.ROWS,
        rows=seen.rows,
        evidence={
            "table": seen.target,
            "keep_seconds": seen.keeps.total_seconds(),
            "leaves": seen.generation,
            "inputs": seen.inputs,
            "readers": seen.readers,
            "rejected": [name_of(one) for one in seen.rejections],
            "continues": None if continues is None else continues.number,
        },
    )


def _sentences(seen: RefreshTargetObservation) -> Iterator[str]:
    stream = seen.declaration.stream
    if seen.continues is not None:
        yield f"Continue refresh {seen.continues.number} of {stream}; it is {seen.continues.state}."
    for one in seen.inputs:
        yield f"Read input {one.input}: {one.what}{_amount(one)}."
    for lookup in seen.lookups:
        yield f"Look rows up as they are now: {lookup}."
    holds = "" if seen.rows is None else f", which holds {seen.rows:,} rows now"
    yield f"Replace all rows of {seen.target}{holds}, in one commit; until then they stay as they are."
    if seen.declaration.quarantine:
        yield (
            f"Replace all records of {seen.declaration.quarantine_table} by those that the new content rejects, right "
            "after that. What a person has discarded stays discarded."
        )
    yield NO_FEWER
    yield _end_of_reading(seen)
    if seen.rejections:
        yield returning_sentence(seen.rejections)
    if seen.backfilled:
        yield _backfilled(seen)
    yield f"{stream} continues meanwhile; for the commit it is stopped, and then continues in a new generation."
    days = seen.keeps / timedelta(days=1)
    yield f"Keep the earlier content for {days:g} days: `sluice stream refresh {stream} --take-back`."
    for reader in seen.readers:
        if reader.on_overwrite != "fail":  # one that stops is a refusal
            yield f"Reader {meaning_of(reader)}."


def _end_of_reading(seen: RefreshTargetObservation) -> str:
    stream = seen.declaration.stream
    if not seen.changed_inputs:
        return f"Each input is read exactly as far as {stream} has read it; what comes later is appended by {stream}."
    return (
        f"{', '.join(seen.changed_inputs)} is another input than {stream} has read so far: all inputs are read as far "
        "as they go, and readers of the table never get as new what became visible by the refresh alone."
    )


def _backfilled(seen: RefreshTargetObservation) -> str:
    named = ", ".join(interval.spoken for interval in seen.backfilled[-_MOST_NAMED:])
    rest = f", and {len(seen.backfilled) - _MOST_NAMED} earlier ones" if len(seen.backfilled) > _MOST_NAMED else ""
    stream = seen.declaration.stream
    return (
        f"Backfills brought rows into {seen.target} that {stream} may drop as late: {named}{rest}. Search for gaps "
        f"afterwards (`sluice stream gaps {stream}`), and backfill those intervals again."
    )


def not_yet(declaration: StreamDeclaration) -> Iterator[Refusal]:
    """What of a declaration no refresh handles yet."""
    outputs = tuple(declaration.outputs.values())
    table = outputs[0].iceberg
    if len(outputs) != 1 or table is None:
        yield _refused_yet(declaration, "has not exactly one output, an Iceberg table")
        return
    if table.is_direct:
        yield _refused_yet(declaration, "delivers directly, without the mark that a refresh moves")
    if table.mode not in REFRESHED_MODES:
        yield _refused_yet(declaration, f"has mode `{table.mode}`; the modes are {' and '.join(REFRESHED_MODES)}")
    if declaration.hands_on_records:
        yield _refused_yet(declaration, "has a trigger without batches")
    if table.table in declaration.tables_read:
        yield _refused_yet(declaration, f"reads {table.table}, which it writes")
    for name, declared in declaration.inputs.items():
        if declared.is_stream and not isinstance(declared.declared_source.source, _READ_AGAIN):
            yield _refused_yet(declaration, f"reads {declared.declared_source.kind} (input {name})")


def _refused_yet(declaration: StreamDeclaration, what: str) -> Refusal:
    return Refusal(
        reason=RefusalReason.NOT_YET,
        sentence=f"{declaration.stream} cannot be refreshed yet: it {what}.",
        next_step=f"`sluice stream reset {declaration.stream} --dry-run` shows what reading again into the same table "
        "does.",
    )


def _refusals(seen: RefreshTargetObservation) -> Iterator[Refusal]:
    stream = seen.declaration.stream
    yield from _other_refresh(seen)
    if seen.generation is None or not seen.has_published:
        yield Refusal(
            reason=RefusalReason.NOTHING_PUBLISHED,
            sentence=f"{stream} has published nothing in its open generation.",
            next_step=f"Start it: it reads from the beginning. `sluice stream start {stream}`.",
        )
        return  # what else might be said is about a table that the stream has not written
    for one in seen.inputs:
        if one.problem:
            yield Refusal(
                reason=RefusalReason.SOURCE_INCOMPLETE,
                sentence=f"Input {one.input} cannot be read from its beginning: {one.problem}.",
                next_step="What is missing there would be missing in the table. Backfill the intervals whose rows are "
                "left, or keep every row in a table and let the stream read that.",
            )
    if seen.other_writers:
        yield Refusal(
            reason=RefusalReason.OTHER_WRITERS,
            sentence=f"{seen.target} also holds rows of {', '.join(seen.other_writers)}, which a refresh of {stream} "
            "would delete.",
            next_step="Refresh only tables that one stream writes.",
        )
    if seen.delete_files or seen.merges_on_read:
        has = f"{seen.delete_files} delete files" if seen.delete_files else "MERGE declared as merge-on-read"
        yield Refusal(
            reason=RefusalReason.DELETE_FILES,
            sentence=f"{seen.target} has {has}, and a refresh exchanges data files.",
            next_step="Declare `write.merge.mode: copy-on-write`, and write its rows again in Spark while nothing "
            f"writes it: `{statement_without_delete_files(seen.target)}`.",
        )
    if seen.held is not None:
        yield _waits_for_a_person(seen.held)
    yield from readers_that_stop(seen.readers)


def _waits_for_a_person(held: HeldBatch) -> Refusal:
    """What is staged and not visible could not be read again after the way back."""
    stream, number = held.key.stream, held.key.batch
    decided = f"Start it, so that a run carries that out: `sluice stream start {stream}`."
    undecided = f"Decide about it (`sluice batch release {stream} {number}`, or `reject`), and let a run carry it out."
    became = "waits for a person" if held.decision is None else f"was {held.decision}, and no run has carried that out"
    return Refusal(
        reason=RefusalReason.BATCH_HELD,
        sentence=f"Batch {number} of {stream} {became}: it breaks {held.reason}.",
        next_step=undecided if held.decision is None else decided,
    )


def _other_refresh(seen: RefreshTargetObservation) -> Iterator[Refusal]:
    newest = seen.newest
    if newest is None or newest.state not in OPEN_STATES:
        return
    stream = seen.declaration.stream
    if newest.state is RefreshState.TAKING_BACK:
        yield Refusal(
            reason=RefusalReason.OTHER_REFRESH,
            sentence=f"Refresh {newest.number} of {stream} is being taken back.",
            next_step=f"Complete that: `sluice stream refresh {stream} --take-back`.",
        )
    elif newest.digest != seen.digest:
        yield Refusal(
            reason=RefusalReason.OTHER_REFRESH,
            sentence=f"Refresh {newest.number} of {stream} was begun with another declaration, and the shadow holds "
            "its rows.",
            next_step=f"Restore that declaration, or give it up: `sluice stream refresh {stream} --abandon`.",
        )


def _amount(one: InputToRead) -> str:
    if one.rows is None:
        return "; how many rows they are is unknown"
    size = "" if one.data_bytes is None else f" in {one.data_bytes:,} bytes of files"
    return f"; now these are {one.rows:,} rows{size}"
