"""`sluice stream events` and `sluice table events`: the decisions about a stream or table, and the commands over it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Annotated, Any

import typer
from rich.table import Table

from sluice.backfill.intervals import parse_time
from sluice.cli.cli_context import person
from sluice.cli.terminal import AsJson, StreamName, TableName, console, print_json
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import all_tables
from sluice.declarations.scalar_types import parse_duration
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.events import REQUESTED, Actor, Event, EventAction, EventObservation, EventSubject, recent_events
from sluice.settings import Settings, load_settings

Limit = Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, the newest.")]
Since = Annotated[
    str | None, typer.Option(help="Only events after this: a duration like `2 hours`, or a time like 2026-01-31T08:00.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue with new events until Ctrl-C, oldest first.")]

_POLL_SECONDS = 1.0
_MOST_AT_ONCE = 10_000
_COMMITTED_WITHIN = timedelta(seconds=60)
"""How long after its time an event may appear: no transaction of the ledger takes longer."""


def stream_events(
    name: StreamName, limit: Limit = 20, since: Since = None, follow: Follow = False, as_json: AsJson = False
) -> None:
    """Show what was decided about a stream and what persons asked of it, newest first; each with its reason."""

    def require_declared(settings: Settings) -> None:
        load_declarations(settings.pipelines).stream(name)

    _show(EventSubject.STREAM, name, require_declared, limit=limit, since=since, follow=follow, as_json=as_json)


def table_events(
    name: TableName, limit: Limit = 20, since: Since = None, follow: Follow = False, as_json: AsJson = False
) -> None:
    """Show what was decided about a table and what persons did to it, newest first; each with its reason."""

    def require_declared(settings: Settings) -> None:
        declarations = load_declarations(settings.pipelines)
        if name not in all_tables(declarations):
            declarations.table(name)

    _show(EventSubject.TABLE, name, require_declared, limit=limit, since=since, follow=follow, as_json=as_json)


def table_command(action: EventAction, table: str, *, evidence: Mapping[str, Any] | None = None) -> Event:
    """The command of the person at this terminal over a table, as an event."""
    return Event(
        subject=EventSubject.TABLE,
        name=table,
        actor=Actor.person(person()),
        action=action,
        reason=REQUESTED,
        evidence=evidence or {},
    )


def events_table(events: Sequence[EventObservation], *, title: str | None = None) -> Table:
    """Events in the order in which they are given."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("time (UTC)", "action", "reason", "by", "explanation"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "time (UTC)")
    for event in events:
        table.add_row(_time(event), event.action, event.reason, event.actor.name, event.explanation)
    return table


def _show(
    subject: EventSubject,
    name: str,
    require_declared: Callable[[Settings], None],
    *,
    limit: int,
    since: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print events. A name without any must be declared; one that is not declared any more still has its events."""
    settings = load_settings()
    with open_ledger(settings.ledger_url) as ledger:
        now = database_time(ledger)
        after = None if since is None else _time_of(since, now=now)
        found = recent_events(ledger, subject, name, limit=limit, since=after)
        if not found and not recent_events(ledger, subject, name, limit=1):
            require_declared(settings)
        if follow:
            for event in chain(reversed(found), _follow(ledger, subject, name, shown=found, since=now)):
                typer.echo(json.dumps(json_value(event)) if as_json else _line(event))
        elif as_json:
            print_json({str(subject): name, "events": [json_value(event) for event in found]})
        elif found:
            console().print(events_table(found))
        else:
            typer.echo(f"{name}: no event is recorded")


def _follow(
    ledger: Ledger, subject: EventSubject, name: str, *, shown: Sequence[EventObservation], since: datetime
) -> Iterator[EventObservation]:
    """Yield events after a time, oldest first, until the process is interrupted; those that were shown are left out.

    Events get their numbers before they are committed, so each look goes back a minute behind the newest one.
    """
    seen = {event.number for event in shown}
    after = since
    while True:
        for event in reversed(recent_events(ledger, subject, name, limit=_MOST_AT_ONCE, since=after)):
            if event.number not in seen:
                yield event
            seen.add(event.number)
            after = max(after, event.recorded_at - _COMMITTED_WITHIN)
        time.sleep(_POLL_SECONDS)


def _time_of(text: str, *, now: datetime) -> datetime:
    """The time that `--since` names: before now by a duration, or a time; one without a zone is UTC."""
    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        return parse_time(text)
    except UsageError:
        raise UsageError(
            f"--since is neither a duration nor a time, got {text!r}.",
            next_step="Allowed are a duration, like `2 hours`, and a time, like 2026-01-31T08:00.",
        ) from None


def _line(event: EventObservation) -> str:
    explanation = f" {event.explanation}" if event.explanation else ""
    return f"{_time(event)} {event.action} {event.reason} by {event.actor.name}{explanation}"


def _time(event: EventObservation) -> str:
    return f"{event.recorded_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
