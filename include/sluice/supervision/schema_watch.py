"""Makes each change of an input's schema one incident, until the declaration of the stream is changed.

What the stream does about it is declared and has happened already; the incident asks a person whether that is right. It
is no failure: a person is alerted once, and no stream becomes unhealthy by it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger
from sluice.ledger.source_schemas import SchemaChange, newest_schema_changes
from sluice.ledger.stream_troubles import (
    all_troubles,
    clear_trouble,
    record_report,
    record_trouble,
    schema_subject,
    stream_of_schema,
)
from sluice.supervision.alerts import Alert
from sluice.supervision.platform_troubles import SCHEMA_CHANGED

_log = logging.getLogger(__name__)

LOOKED_EVERY_MINUTES = 5


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
