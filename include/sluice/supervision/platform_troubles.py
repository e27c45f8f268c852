"""What is wrong beside the streams: a table whose newest check failed or whose rows are unusual, an input whose schema
has changed, and a DAG of the platform that is paused.

Each is recorded as a trouble, under the name of the table or the DAG, by whoever sees it: the check of the table, and
the reconciler. So the command line and the pages read them together.

What a stream does about a changed schema is declared and has happened already; the incident asks a person whether that
is right. It is no failure: a person is alerted once, and no stream becomes unhealthy by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import LedgerError
from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.connection import Ledger
from sluice.ledger.source_schemas import SchemaChange, name_of_values, newest_schema_changes
from sluice.ledger.stream_troubles import (
    StreamTrouble,
    all_troubles,
    clear_trouble,
    record_report,
    record_trouble,
    rows_subject,
    schema_subject,
    stream_of_schema,
)
from sluice.processes.deadline import Deadline
from sluice.supervision.alerts import Alert
from sluice.supervision.platform_dags import MISSED_WHILE_PAUSED

_log = logging.getLogger(__name__)

DAG_PAUSED = "dag paused"
"""The reason of the trouble of a DAG."""

UNUSUAL_ROWS = "unusual rows"
"""The reason of the trouble of a table whose rows are unusual in number, or whose columns are."""

SCHEMA_CHANGED = "schema changed"
"""The reason of the trouble of an input whose sender has changed its schema."""

SIGNS = frozenset({DAG_PAUSED, UNUSUAL_ROWS, SCHEMA_CHANGED})
"""The reasons of what a person is to know, and what is no failure."""

LOOKED_EVERY_MINUTES = 5


def subjects_beside_streams(declarations: Declarations) -> frozenset[str]:
    """The names under which such troubles are recorded: of the platform's DAGs, of tables with expectations, of the
    rows of tables, and of the schemas of inputs."""
    checked = {name for name, table in declarations.tables.items() if table.declaration.quality is not None}
    schemas = {
        schema_subject(name, kept)
        for name, stream in declarations.streams.items()
        for one in stream.declaration.inputs
        for kept in (one, name_of_values(one))
    }
    return frozenset(checked | set(map(rows_subject, declarations.tables)) | schemas | set(MISSED_WHILE_PAUSED))


def troubles_beside_streams(ledger: Ledger, subjects: Collection[str]) -> tuple[StreamTrouble, ...]:
    """The troubles of some tables and DAGs, by name."""
    return tuple(trouble for trouble in all_troubles(ledger) if trouble.stream in subjects)


def unusual_rows(ledger: Ledger, table: str | None = None) -> tuple[StreamTrouble, ...]:
    """What is unusual about the rows of a table now, or of each table."""
    found = (trouble for trouble in all_troubles(ledger) if trouble.reason == UNUSUAL_ROWS)
    return tuple(trouble for trouble in found if table is None or trouble.stream == rows_subject(table))


def note_paused_dags(
    ledger: Ledger, observe_dag: Callable[[str], DagObservation | None], *, by: str, deadline: Deadline
) -> None:
    """Record which of the platform's own DAGs are paused. It is no alert: a person has paused them.

    Parameters
    ----------
        observe_dag: asks Airflow about a DAG. by: the task that asks. deadline: after which none is asked about.
    """
    known = {trouble.stream for trouble in all_troubles(ledger) if trouble.reason == DAG_PAUSED}
    for dag, missed in MISSED_WHILE_PAUSED.items():
        if deadline.is_over():
            return
        try:
            seen = observe_dag(dag)
        except Exception as error:  # noqa: BLE001  # the next pass asks again, and streams do not wait for it
            _log.warning("dag=%s could not be observed: %s", dag, error)
            continue
        if seen is not None and seen.is_paused:
            text = f"The DAG {dag} is paused. {missed} Unpause it in Airflow."
            record_trouble(ledger, dag, reason=DAG_PAUSED, explanation=text, by=by)
        elif dag in known:
            clear_trouble(ledger, dag, by=by)


def watch_schemas(ledger: Ledger, declarations: Declarations, *, number: int, by: str) -> tuple[Alert, ...]:
    """Look at the streams whose turn it is.

    Parameters
    ----------
    number: of the pass, its minute. by: the task that watches.

    Returns
    -------
    The changes that are new.
    """
    turn = number % LOOKED_EVERY_MINUTES
    due = [name for place, name in enumerate(sorted(declarations.streams)) if place % LOOKED_EVERY_MINUTES == turn]
    try:
        changes = newest_schema_changes(ledger, due) if due else ()
        open_ones = [change for change in changes if is_open(change, declarations)]
        _clear_settled(ledger, declarations, due, [schema_subject(one.stream, one.input) for one in open_ones], by=by)
        found = [_alert_of(ledger, change, by=by) for change in open_ones]
    except LedgerError as error:
        _log.warning("the schemas of %d streams could not be looked at; the next turn does: %s", len(due), error)
        return ()
    return tuple(alert for alert in found if alert is not None)


def is_open(change: SchemaChange, declarations: Declarations) -> bool:
    """Whether a change still waits for a person: its stream is declared as it was when the change came."""
    return declarations.streams[change.stream].digest == change.declaration_digest


def _alert_of(ledger: Ledger, change: SchemaChange, *, by: str) -> Alert | None:
    subject = schema_subject(change.stream, change.input)
    sentence = (
        f"{change.explanation} `sluice stream show {change.stream}` and its page have a patch of the declaration. This "
        "is settled when the declaration is changed; a comment is enough when all may stay as it is."
    )
    occasion = str(change.number)
    trouble = record_trouble(ledger, subject, reason=SCHEMA_CHANGED, explanation=sentence, by=by, occasion=occasion)
    is_new = record_report(ledger, trouble, by=by)
    return Alert(stream=subject, sentence=sentence, reason=SCHEMA_CHANGED) if is_new else None


def _clear_settled(
    ledger: Ledger, declarations: Declarations, due: Collection[str], kept: Collection[str], *, by: str
) -> None:
    """Clear what is settled of the streams that are looked at, and what is known of streams that no file declares."""
    for trouble in all_troubles(ledger):
        stream = stream_of_schema(trouble.stream)
        is_looked_at = stream in due or (stream is not None and stream not in declarations.stream_names)
        if is_looked_at and trouble.stream not in kept:
            clear_trouble(ledger, trouble.stream, by=by)
