"""The page of a stream in Airflow's UI: what it is, how to operate it, what to do when it is red."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from enum import Enum

from pydantic import BaseModel

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import StreamDeclaration, TriggerDeclaration
from sluice.declarations.transformation_declaration import BackfillDeclaration
from sluice_airflow.pages.page_addresses import stream_address

CONTINUOUS_OPERATION = """\
## How to operate it
- **Start**: unpause this DAG. The driver starts within seconds and runs detached from Airflow; the task then waits in
  the triggerer and holds no worker slot.
- **Stop**: pause this DAG. The driver finishes its batch and ends, about a minute later; unpausing starts it again. Or
  `sluice stream stop {stream}`: then the stream stays stopped until somebody asks for it with
  `sluice stream start {stream}`, and the next DAG run waits for that without a worker slot.
- **Change its declaration**: about a minute later the driver ends between two batches, and a new one continues with the
  new declaration. When the checkpoint cannot follow, the old driver continues and `sluice stream status` says why.
- **Everything by form**: the DAG `stream_control`, or the stream's page.
- **Look**: `sluice stream status {stream}` and `sluice stream logs {stream}`.
- **Clear the task** whenever in doubt: a driver that lives is adopted, never doubled. A DAG run that is triggered by
  hand starts no second driver either: it waits in the queue until the present one ends.
- **Mark the task** as failed or successful, and the driver ends after its batch. It starts again when you clear the
  task, trigger or unpause this DAG, or ask with `sluice stream start {stream}`.

## What to do when it is red
The end of the task's log names the reason and the next step; `sluice stream show {stream}` lists the runs before it. A
stream is given up after {attempts} restarts in a row (a run that stays up for {stable_after} sets the count back), more
or fewer by the class of its failure, and at once where another start would only repeat it (`docs/guides/on-call.md`).
Airflow then pauses this DAG, so that nothing is tried over and over. Repair the cause, then unpause this DAG: its next
run starts the stream with a fresh count.
"""

INCREMENTAL_OPERATION = """\
## How to operate it
- Unpause this DAG, and it runs when it is due. **Trigger** it to run now.
- Every run reads what is new since the last one and ends; with nothing new it ends before Spark starts. A run that
  failed half-way is completed by the next one, so clearing the task is always safe.
- **Look**: `sluice stream status {stream}`; the driver's log is the task's log.

## What to do when it is red
The end of the task's log names the reason. Repair the cause, then clear the task: the checkpoint knows its position.
"""


BACKFILL_OPERATION = """\
# Backfills of {stream}
Each run computes one {interval} of `{target}` again, with the transformation of `{stream}` as it is declared now, and
replaces the rows of that {interval} in one commit. The stream continues beside it, and its position does not move.

## How to operate it
- **Backfill** with the button *Trigger* and its choice *Backfill*, with the API, or with
  `airflow backfill create --dag-id {stream}__backfill --from-date 2013-01-05 --to-date 2013-01-07`. Both dates are
  starts of intervals: these two are three days. The DAG `{stream}` itself takes no backfill.
- **Look first**: `sluice backfill {stream} --from 2013-01-05 --to 2013-01-08 --dry-run` says what would be read and
  replaced, and which streams read the table. There `--to` is the end.
- **Again**: a second backfill of the same interval changes nothing when the rows are the same; choose to reprocess
  completed runs.
- **Cancel** it at any time: before its one commit nothing of a run is visible.

## What to do when it is red
The end of the task's log names the reason. Repair the cause, then clear the task. What a run has replaced, the numbers
of rows and the snapshot are in the XCom `results` of its task, and in the ledger, in its table `backfill_attempts`.
"""


def backfill_document(loaded: LoadedStream, backfill: BackfillDeclaration) -> str:
    """The page of a stream's backfills."""
    target = loaded.declaration.tables_written[0]
    return BACKFILL_OPERATION.format(stream=loaded.name, interval=backfill.interval, target=target)


def continuous_stream_document(loaded: LoadedStream) -> str:
    """The page of a continuous stream."""
    restart = loaded.declaration.supervision.restart
    operation = CONTINUOUS_OPERATION.format(
        stream=loaded.name, attempts=restart.attempts, stable_after=spoken(restart.stable_after)
    )
    return f"{_introduction(loaded)}\n{operation}"


def incremental_stream_document(loaded: LoadedStream) -> str:
    """The page of an incremental stream."""
    return f"{_introduction(loaded)}\n{INCREMENTAL_OPERATION.format(stream=loaded.name)}"


def spoken(duration: timedelta) -> str:
    """A duration for a person: `10 minutes`, `90 seconds`, `500 milliseconds`."""
    milliseconds = round(duration / timedelta(milliseconds=1))
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if milliseconds % size == 0:
            count = milliseconds // size
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{milliseconds} milliseconds"


def _introduction(loaded: LoadedStream) -> str:
    declaration = loaded.declaration
    rows = "\n".join(f"| {title} | {text} |" for title, text in _facts(loaded))
    page = f"**[State, charts, events and actions]({stream_address(declaration.stream)})**"
    return f"# {declaration.stream}\n{declaration.description}\n\n{page}\n\n| | |\n|---|---|\n{rows}\n"


def _facts(loaded: LoadedStream) -> Iterator[tuple[str, str]]:
    declaration = loaded.declaration
    yield "Owner", declaration.owner
    for name, declared in declaration.inputs.items():
        role = "stream" if declared.is_stream else "static"
        source = declared.declared_source
        yield f"Input `{name}` ({role})", f"{source.kind}: {_described(source.source)}"
    yield "Transformation", f"`{declaration.transformation.python or declaration.transformation.sql}`"
    for name, output in declaration.outputs.items():
        yield f"Output `{name}`", f"{output.kind}: {_described(output.output)}"
    if declaration.quarantine:
        yield "Refused rows", f"`{declaration.quarantine_table}`"
    yield "Runs", _when(declaration)
    if declaration.backfill is not None:
        yield "Backfills", f"DAG `{declaration.stream}__backfill`, by {declaration.backfill.interval}"
    yield "Declared in", f"`{loaded.folder.name}/{loaded.file.name}`"


def _when(declaration: StreamDeclaration) -> str:
    if declaration.schedule is None:
        return f"continuously, {_trigger(declaration.trigger)}"
    parts = [f"by the clock, `{declaration.schedule.cron}` (UTC)"] if declaration.schedule.cron else []
    if declaration.schedule.tables:
        tables = " and ".join(f"`{table}`" for table in declaration.schedule.tables)
        parts.append(f"when {tables} {'has' if len(declaration.schedule.tables) == 1 else 'have'} new rows")
    return ", or ".join(parts)


def _trigger(trigger: TriggerDeclaration | None) -> str:
    if trigger is None:
        return "without a trigger"
    if trigger.processing_time is not None:
        return f"a batch every {spoken(trigger.processing_time)}"
    return f"trigger `{trigger.kind}`"


def _described(model: BaseModel) -> str:
    """The fields that were written, without the long ones such as columns."""
    parts = [
        f"{name} {_value(value)}" for name in type(model).model_fields if (value := _short(model, name)) is not None
    ]
    return ", ".join(parts) or "as it comes"


def _short(model: BaseModel, field: str) -> object | None:
    value = getattr(model, field)
    is_short = isinstance(value, (str, int, timedelta, Enum)) or (
        isinstance(value, tuple) and bool(value) and all(isinstance(item, str) for item in value)
    )
    return value if field in model.model_fields_set and is_short else None


def _value(value: object) -> str:
    if isinstance(value, timedelta):
        return spoken(value)
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    return f"`{value}`"
