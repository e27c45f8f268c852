"""`sluice quarantine show | replay | discard`: the rejected records of a stream, and what becomes of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

import typer
from pyiceberg.catalog import Catalog
from rich.table import Table

from sluice.backfill.replay_lane import ReplayLane, replay_key
from sluice.backfill.replayable_rows import (
    OpenRow,
    PresentSource,
    Selection,
    of_several_sources,
    read_open_rows,
    refusals_of,
    replayed_output,
    shown_position,
)
from sluice.cli.cli_context import CliContext, have_done, open_cli_context, person
from sluice.cli.terminal import AsJson, DryRun, StreamName, Yes, console, may_act, print_done, print_json
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import UsageError
from sluice.ledger.connection import database_time
from sluice.ledger.events import EventAction, record_event
from sluice.operations import OperationPlan, OperationVerb, Stake, steps_of
from sluice.publication.resolved_rejections import Resolution, ResolvedRows, mark_resolved
from sluice.supervision.supervision_values import command_event
from sluice.tables.catalog import open_catalog
from sluice.work.requests import NO, YES, ReplayRecords

app = typer.Typer(
    help="The rejected records of a stream: show, replay and discard them.", no_args_is_help=True, add_completion=False
)

Kinds = Annotated[list[str] | None, typer.Option("--kind", help="Only rows of this kind; may be repeated.")]
Positions = Annotated[
    list[str] | None, typer.Option("--position", help="Only the row of this position; may be repeated.")
]
Batches = Annotated[
    list[str] | None,
    typer.Option("--batch", help="Only what this batch rejected, `<generation>:<batch>`; may be repeated."),
]
AllowRepeated = Annotated[
    bool, typer.Option("--allow-repeated", help="Also publish rows that are in the table already, as of other records.")
]
_BY_TRANSFORMATION = "by the transformation"


@app.command()
def show(name: StreamName, as_json: AsJson = False) -> None:
    """Show how many rejected records of a stream are open, by their kind. Values are on the page in Airflow."""
    with open_cli_context() as ctx:
        declaration = ctx.declarations.stream(name).declaration
        rows = read_open_rows(open_catalog(ctx.settings), declaration)
    groups: dict[str, list[OpenRow]] = {}
    for row in rows:
        groups.setdefault(row.kind or _BY_TRANSFORMATION, []).append(row)
    if as_json:
        shown = {kind: _group_json(found, declaration) for kind, found in sorted(groups.items())}
        print_json({"stream": name, "open": len(rows), "kinds": shown})
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("kind", "open", "first", "last", "newest position"):
        table.add_column(heading)
    for kind, found in sorted(groups.items()):
        first, last = (f"{row.refused_at:%Y-%m-%d %H:%M:%S}" for row in (found[0], found[-1]))
        table.add_row(kind, f"{len(found):,}", first, last, shown_position(found[-1], declaration) or "unknown")
    console().print(table)
    typer.echo(f"{len(rows):,} rejected rows of {name} are open.")
    if rows:
        typer.echo(f"`sluice quarantine replay {name}` shows what the code of today makes of them, and asks.")


@app.command()
def replay(
    name: StreamName,
    kinds: Kinds = None,
    positions: Positions = None,
    batches: Batches = None,
    allows_repeated: AllowRepeated = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Publish open rejected records through the code of today, beside the live stream, each once.

    They are computed first, and what they give is shown; you are asked to confirm it. A command that was interrupted is
    completed by repeating it.
    """
    with open_cli_context() as ctx:
        stream = ctx.declarations.stream(name)
        now = database_time(ctx.ledger).isoformat()
        asked = ReplayRecords(
            stream=name,
            kinds=json.dumps(sorted(kinds or [])),
            positions=json.dumps(sorted(positions or [])),
            batches=json.dumps(sorted(batches or [])),
            until=now,
            allows_repeated=YES if allows_repeated else NO,
        )
        digests: list[str] = []

        def planned() -> list[OperationPlan[Mapping[str, Any]]]:
            tried = have_done(ctx, replace(asked, only_tries=YES))
            digests.append(tried["digest"])
            return [_replay_plan(stream, tried)]

        if not may_act(planned, dry_run=dry_run, yes=yes, as_json=as_json):
            return
        done = have_done(ctx, replace(asked, planned=digests[0] if digests else ""))
    sentence = f"{done['marked']:,} rejected rows are resolved by {done['rows']:,} rows of {_target_of(stream)}."
    print_done(OperationVerb.REPLAY, done, sentence, as_json=as_json)


@app.command()
def discard(
    name: StreamName,
    kinds: Kinds = None,
    positions: Positions = None,
    batches: Batches = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Mark open rejected records as discarded: they stay in the table, and nothing replays them, for good."""
    with open_cli_context() as ctx:
        declaration, catalog = ctx.declarations.stream(name).declaration, open_catalog(ctx.settings)
        selection = Selection(
            kinds=frozenset(kinds or ()), positions=frozenset(positions or ()), batches=frozenset(batches or ())
        )
        now, chosen = database_time(ctx.ledger), selection.of(read_open_rows(catalog, declaration))
        if positions and not batches:
            _require_one_record_at_each(ctx, declaration, catalog, chosen)
        plan = _discard_plan(name, chosen)
        if not may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        sentence = f"{len(chosen)} rejected rows are discarded."
        _fence(catalog, ctx.declarations.stream(name), now)
        record_event(ctx.ledger, command_event(EventAction.DISCARD, name, by=person(), explanation=sentence))
        resolved = ResolvedRows(
            stream=name,
            rows={row.at for row in chosen if row.at is not None},
            resolution=Resolution.DISCARDED,
            by=person(),
            at=now,
        )
        marked = mark_resolved(catalog, declaration.quarantine_table, resolved)
    print_done(plan.verb, {"stream": name, "marked": marked}, f"{marked:,} rows are discarded.", as_json=as_json)


def _require_one_record_at_each(
    ctx: CliContext, declaration: StreamDeclaration, catalog: Catalog, rows: list[OpenRow]
) -> None:
    """Refuse positions of a source that was created again: they are those of other records, too."""
    if len({row.place for row in rows}) == len(rows):
        return
    present = PresentSource.observed(ctx.ledger, declaration, ctx.settings, catalog)
    if others := of_several_sources(rows, present.has):
        batches = ", ".join(sorted({row.rejected_by for same in others for row in same}))
        raise UsageError(
            f"At {len(others)} of the positions, batches {batches} of {declaration.stream} rejected records, and their "
            "source was created again: they are different records.",
            next_step="Say whose are meant, with `--batch`.",
        )


def _fence(catalog: Catalog, stream: LoadedStream, now: datetime) -> None:
    """Mark what a replay has published, which is not there to be discarded, and let none that is under way publish."""
    output = replayed_output(stream.declaration)
    if not any(refusals_of(stream, has_open_backfill=False, has_open_refresh=False)):  # else nothing is replayed
        lane = ReplayLane(catalog=catalog, output=output, quarantine=stream.declaration.quarantine_table)
        lane.fence(replay_key(stream.name, now=now), at=now)


def _group_json(rows: list[OpenRow], declaration: StreamDeclaration) -> dict[str, Any]:
    return {
        "open": len(rows),
        "first": rows[0].refused_at.isoformat(),
        "last": rows[-1].refused_at.isoformat(),
        "newest_position": shown_position(rows[-1], declaration),
    }


def _replay_plan(stream: LoadedStream, tried: Mapping[str, Any]) -> OperationPlan[Mapping[str, Any]]:
    return OperationPlan(
        verb=OperationVerb.REPLAY,
        subject=stream.name,
        seen=tried,
        steps=steps_of(*_replay_sentences(stream, tried)),
        at_stake=Stake.ROWS if tried["rows"] or tried["by_source"] or tried["by_stored"] else Stake.NOTHING,
        rows=tried["rows"],
        evidence={name: value for name, value in tried.items() if name not in ("key", "marked", "snapshot_id")},
    )


def _replay_sentences(stream: LoadedStream, tried: Mapping[str, Any]) -> Iterator[str]:
    yield f"Of {tried['open']:,} open rows, read {tried['by_source']:,} records in their source again."
    if tried["by_stored"]:
        yield (
            f"Take {tried['by_stored']:,} from the quarantine, because the source holds them no more: what a record "
            "has beside its position and its value, such as key and time, is null."
        )
    for why, count in tried["left"].items():
        yield f"Leave {count:,} as they are: {why}."
    if rejected := tried["rejected"]:
        reasons = ", ".join(f"{count:,} {kind}" for kind, count in Counter(rejected).most_common())
        yield f"Leave open what is rejected again: {reasons}."
    yield f"Add {tried['rows']:,} rows to {_target_of(stream)} in one commit."
    if tried["visible"]:
        yield f"Of these, {tried['visible']:,} are in the table already, and are there once more then."
    yield "Mark the rows as replayed. The live stream continues, and its mark stays."


def _target_of(stream: LoadedStream) -> str:
    return replayed_output(stream.declaration).target


def _discard_plan(name: str, rows: list[OpenRow]) -> OperationPlan[list[OpenRow]]:
    nameless = sum(row.place is None for row in rows)
    places = sorted(f"{row.rejected_by} {row.place}" for row in rows if row.place is not None)
    steps = [f"Mark {len(places):,} rejected rows as discarded. They stay in the table; no replay takes them."]
    if nameless:
        steps.append(f"Leave {nameless:,} as they are: neither a position nor a value says which they are.")
    return OperationPlan(
        verb=OperationVerb.DISCARD,
        subject=name,
        seen=rows,
        steps=steps_of(*steps),
        at_stake=Stake.ROWS if places else Stake.NOTHING,
        rows=len(places),
        evidence={"rows": len(places), "places": hashlib.sha256(json.dumps(places).encode()).hexdigest()},
    )
