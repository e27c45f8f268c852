"""A person decides about the batch of a stream that is held: it is released, with all rows or without those that break
a rule, or it is rejected.

The decision is a row of the ledger; a run of the stream carries it out, the live one within seconds and otherwise the
next. So the command needs no lease, and nothing is half done when it is interrupted. A batch that a stopped stream has
left is rejected by the command itself (`batch_rejection`); its plan is chosen here, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import Declarations, LoadedStream, masked_columns_of_table
from sluice.declarations.rule_declaration import row_rules
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.events import REQUESTED, Actor, Event, EventAction
from sluice.ledger.held_batches import HeldBatch, HeldDecision, decide_held, find_held, undecided_batches
from sluice.ledger.runs import newest_run
from sluice.operations import OperationPlan, OperationVerb, Stake, steps_of
from sluice.publication.batch_rejection import Rejection, plan_rejection

_VERBS = {
    OperationVerb.RELEASE_BATCH: (HeldDecision.RELEASED, EventAction.RELEASE_BATCH),
    OperationVerb.SEPARATE_BATCH: (HeldDecision.SEPARATED, EventAction.RELEASE_BATCH),
    OperationVerb.REJECT_BATCH: (HeldDecision.REJECTED, EventAction.REJECT_BATCH),
}


def holds_batch(ledger: Ledger, stream: str, number: int | None = None) -> bool:
    """Whether a batch of a stream waits for a decision; the one of this number, if one is given."""
    held = find_held(ledger, stream)
    return held is not None and held.decision is None and number in (None, held.key.batch)


def held_of_table(ledger: Ledger, declarations: Declarations, table: str) -> tuple[HeldBatch, ...]:
    """The batches that a table does not have yet because a person is to decide about them, by stream."""
    streams = declarations.streams.items()
    return undecided_batches(ledger, [name for name, one in streams if table in one.declaration.tables_written])


def plan_decision(
    ledger: Ledger, loaded: LoadedStream, verb: OperationVerb, *, number: int | None = None
) -> OperationPlan[HeldBatch]:
    """Plan the release or the rejection of the held batch of a stream. Nothing is changed.

    Parameters
    ----------
    verb: RELEASE_BATCH, SEPARATE_BATCH or REJECT_BATCH. number: of the batch; unset: the one that is held.

    Raises
    ------
    UsageError: when no such batch waits for a decision, or its rows cannot be separated.
    """
    stream = loaded.name
    held = find_held(ledger, stream)
    if held is None or number not in (None, held.key.batch):
        waiting = f"batch {held.key.number} is" if held is not None else "none is"
        asked = f"Batch {number}" if number is not None else "A batch"
        raise UsageError(f"{asked} of {stream} is not held; {waiting}.", next_step=f"See `sluice batch list {stream}`.")
    if held.decision is not None:
        raise UsageError(
            f"Batch {held.key.number} of {stream} was {held.decision} by {held.decided_by}, and no run has carried "
            "that out yet.",
            next_step=f"Start the stream: `sluice stream start {stream}`.",
        )
    if verb is OperationVerb.SEPARATE_BATCH and (obstacle := next(_obstacles(loaded, held), "")):
        raise UsageError(
            f"Batch {held.key.number} of {stream} cannot be released without some of its rows: {obstacle}.",
            next_step=f"Release all of it (`sluice batch release {stream} {held.key.batch}`), or reject it.",
        )
    return OperationPlan(
        verb=verb,
        subject=stream,
        part=f"batch {held.key.number}",
        seen=held,
        steps=steps_of(*_sentences(ledger, loaded, held, verb)),
        at_stake=Stake.ROWS,
        rows=sum(held.rows.values()),
        evidence={"batch": str(held.key), "reason": held.reason, "rows": dict(held.rows)},
    )


def broken_samples(declarations: Declarations, stream: str, held: HeldBatch) -> Iterator[str]:
    """Some rows of a held batch that break each rule. They are data, for those alone who may see records of the stream;
    none with a column that is masked by now, by the stream or one before it."""
    outputs = declarations.stream(stream).declaration.outputs
    for output, rules in held.samples.items():
        declared = outputs[output].iceberg if output in outputs else None
        if declared is None:
            continue
        masked = masked_columns_of_table(declarations, declared.table)
        for name, rows in rules.items():
            shown = [row for row in json.loads(rows) if masked.isdisjoint(_names_within(json.loads(row)))]
            if shown:
                yield f"Rows of {output} that break {name}, for example: {', '.join(shown)}."


def _names_within(value: object) -> Iterator[str]:
    """The names of all fields of a JSON value, at any depth, in lower case."""
    if isinstance(value, dict):
        for name, within in value.items():
            yield name.lower()
            yield from _names_within(within)
    elif isinstance(value, list):
        for within in value:
            yield from _names_within(within)


def decide(ledger: Ledger, plan: OperationPlan[HeldBatch], *, requested_by: str, planned: str | None = None) -> None:
    """Record the decision of a person.

    Parameters
    ----------
    requested_by: the person, as the ledger names them.
    planned: the digest of the plan that the person agreed to; unset: this one.

    Raises
    ------
    UsageError: when the batch is another one than was shown, or somebody has decided about it.
    """
    plan.require_same(planned)
    decision, action = _VERBS[plan.verb]
    held = plan.seen
    event = Event(
        name=plan.subject,
        actor=Actor.person(requested_by),
        action=action,
        reason=REQUESTED,
        explanation=f"Batch {held.key} is {decision}; it breaks {held.reason}.",
        evidence=plan.evidence,
    )
    if not decide_held(ledger, held.key, decision, event, by=requested_by):
        raise UsageError(
            f"Batch {held.key.number} of {plan.subject} waits no more, or somebody else has decided about it.",
            next_step=f"See `sluice batch list {plan.subject}`; nothing was changed.",
        )


def _obstacles(loaded: LoadedStream, held: HeldBatch) -> Iterator[str]:
    """Why the rows that break a rule cannot be found again."""
    if not loaded.declaration.quarantine or QUARANTINE_OUTPUT not in held.rows:
        yield "the stream has no quarantine, or had none when it was staged"
    if not held.failed:
        yield "an earlier version has held it; the next start of the stream says by which rules"
    rules = row_rules(loaded.rules)
    for output, failed in held.failed.items():
        if output == QUARANTINE_OUTPUT:
            if len(held.failed) == 1:
                yield "the rows that it rejects are in its quarantine already"
            continue
        known = {rule.name for rule in rules.get(output, ())}
        declared = loaded.declaration.outputs.get(output)
        if declared is None or declared.iceberg is None or declared.iceberg.mode == "merge":
            yield f"{output} is merged, and of each key only the newest row is staged"
        for name in failed:
            if name not in known:
                yield f"{name} is no rule about single rows, or is not declared any more"


def _sentences(ledger: Ledger, loaded: LoadedStream, held: HeldBatch, verb: OperationVerb) -> tuple[str, ...]:
    run, schedule = newest_run(ledger, held.key.stream), loaded.declaration.schedule
    next_run = "the next run of its DAG does it first; trigger one to have it at once"
    if schedule is not None and schedule.is_by_tables_alone:
        next_run = "a run of its DAG, which the reconciler triggers within a minute or two, does it first"
    when = "the live run does it within seconds" if run is not None and run.is_live else next_run
    rows = ", ".join(f"{count:,} rows of {output}" for output, count in held.rows.items())
    behind = f" The {held.queued} batches behind it follow, up to the next one that is held." if held.queued else ""
    breaks = f"Batch {held.key} breaks {held.reason}."
    if verb is OperationVerb.SEPARATE_BATCH:
        of_rows = [failed for output, failed in held.failed.items() if output != QUARANTINE_OUTPUT]
        rules = ", ".join(f"{name} ({one:,})" for failed in of_rows for name, one in failed.items())
        return (
            breaks,
            f"The rows that break {rules} go to the quarantine with these names, and all others of {rows} become "
            f"visible: {when}.{behind}",
            "Should the rules find other rows then, because they have changed, the batch waits for you again.",
        )
    if verb is OperationVerb.RELEASE_BATCH:
        return breaks, f"All of it becomes visible, {rows}: {when}.{behind}"
    return (
        breaks,
        f"It is discarded, {rows} never become visible: {when}.{behind} This cannot be undone.",
        "State that the stream has built from these rows stays.",
    )


RELEASES = (OperationVerb.RELEASE_BATCH, OperationVerb.SEPARATE_BATCH)
"""What makes rows of a held batch visible."""

BATCH_VERBS = (*RELEASES, OperationVerb.REJECT_BATCH)
"""What decides about the rows of one batch."""


def plan_about_batch(
    ledger: Ledger,
    stream: LoadedStream,
    verb: OperationVerb,
    *,
    open_tables: Callable[[], Catalog],
    number: int | None = None,
) -> OperationPlan[HeldBatch] | OperationPlan[Rejection]:
    """Plan the release of a held batch, or the rejection of one that is held or is the next one of a stopped stream.

    Parameters
    ----------
    verb: one of `BATCH_VERBS`. open_tables: opens the catalog, which what is held does not need.
    number: of the batch; unset: the one that waits.

    Raises
    ------
    SluiceError: as `plan_decision` and `plan_rejection` do.
    """
    if verb in RELEASES or holds_batch(ledger, stream.name, number):
        return plan_decision(ledger, stream, verb, number=number)
    return plan_rejection(open_tables(), ledger, stream.declaration, number=number)
