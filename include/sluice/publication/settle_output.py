"""`sluice batch publish | abandon`: decides about batches that are staged for an output which is no longer declared.

The start of the stream is refused until a person has decided (`sluice.publication.undeclared_outputs`). Batches are
published as they were staged, whatever the declaration says today.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from pyiceberg.catalog import Catalog

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import MarkError, StagingError, UnpublishableError, UsageError
from sluice.ledger.batches import PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import REQUESTED, Actor, Event, EventAction, record_event
from sluice.operations import OperationPlan, OperationVerb, Stake, steps_of
from sluice.publication.chain import AbandonedBatch, AbandonReason
from sluice.publication.command_runs import CommandMode, refuse_live_run, run_of_command
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.mark_moves import plan_output
from sluice.publication.publish_batches import ReplacedRange, publish_append, publish_replace
from sluice.publication.repair import restore_lost_mark
from sluice.publication.staged_batch import (
    StagedBatch,
    StagedOutput,
    is_held,
    recovered_observation,
    staged_outputs,
)
from sluice.publication.staging_layout import empty_staging_table
from sluice.publication.staging_table import clear_staging, staged_batches
from sluice.publication.undeclared_outputs import (
    UndeclaredOutput,
    find_undeclared_outputs,
    load_output_tables,
    with_declared_outputs,
)
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table

_log = logging.getLogger(__name__)


SettlementVerb = Literal[OperationVerb.PUBLISH_OUTPUT, OperationVerb.ABANDON_OUTPUT]
"""Whether the batches become visible, or are discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettlement:
    """What a command does, or would do, with what is staged for an output.

    target: the table that the batches were staged for; none when it is not known.
    batches: those that wait, in order. rows: how many they have together.
    """

    verb: SettlementVerb
    stream: str
    output: str
    target: str | None
    batches: tuple[PublicationKey, ...]
    rows: int

    def sentence(self) -> str:
        """What it does, for a person."""
        become = "become" if self.verb is OperationVerb.PUBLISH_OUTPUT else "never become"
        which = f": {self.batches[0]} to {self.batches[-1]}" if self.batches else ""
        return (
            f"{len(self.batches)} batches of {self.stream}.{self.output} with {self.rows:,} rows {become} visible in "
            f"{self.target or 'any table'}{which}."
        )

    def plan(self) -> OperationPlan[OutputSettlement]:
        """The settlement for a person who is to agree to it."""
        return OperationPlan(
            verb=self.verb,
            subject=self.stream,
            part=f"output {self.output}",
            seen=self,
            steps=steps_of(self.sentence()),
            at_stake=Stake.ROWS,
            rows=self.rows,
            evidence={
                "output": self.output,
                "target": self.target,
                "batches": [str(key) for key in self.batches],
                "rows": self.rows,
            },
        )


def plan_settlement(
    catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration, *, output: str, verb: SettlementVerb
) -> OperationPlan[OutputSettlement]:
    """Check whether the batches of an output can be published or abandoned now, and say which they are.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run.
    UsageError: when nothing waits for the output, or the next start publishes it.
    UnpublishableError: when the batches can only be published by a driver, or not at all.
    DeliveryError, LakehouseError, LedgerError: when tables or the ledger cannot be read.
    """
    refuse_live_run(ledger, declaration.stream)
    return _settlement(_settled(catalog, declaration, output, verb), verb).plan()


def publish_output(
    catalog: Catalog,
    ledger: Ledger,
    declaration: StreamDeclaration,
    *,
    output: str,
    requested_by: str,
    planned: str | None = None,
    reached: Reached = unnoticed,
) -> OutputSettlement:
    """Make the batches of an undeclared output visible in the table that they were staged for, and record them.

    After a crash in between, a second call or the next start completes the work.

    Parameters
    ----------
    requested_by: the person, as the ledger names them.
    planned: the digest of the plan that a person agreed to; unset: what is staged now.
    reached: is called with CHECKED before each commit is sent.

    Raises
    ------
    SluiceError: as `plan_settlement` does.
    """
    with _settling(catalog, ledger, declaration, output, OperationVerb.PUBLISH_OUTPUT, requested_by, planned) as (
        found,
        plan,
        token,
    ):
        names = StagedOutput(stream=found.stream, output=output, target=found.target or "")
        restore_lost_mark(catalog, names, token=token)
        for mode, alike in groupby(found.waiting, key=_mode_of):
            _publish(catalog, names, list(alike), mode=mode, token=token, reached=reached)
        for observed in with_declared_outputs(catalog, staged_outputs(declaration), found.waiting):
            record_batch(ledger, recovered_observation(observed))
        clear_staging(catalog, names, token=token)
    return plan


def abandon_output(
    catalog: Catalog,
    ledger: Ledger,
    declaration: StreamDeclaration,
    *,
    output: str,
    requested_by: str,
    planned: str | None = None,
) -> OutputSettlement:
    """Discard the batches that wait for an output. Their files stay until `sluice table remove-orphans`.

    Parameters
    ----------
    requested_by: the person, as the ledger names them.
    planned: as for `publish_output`.

    Raises
    ------
    SluiceError: as `plan_settlement` does.
    """
    with _settling(catalog, ledger, declaration, output, OperationVerb.ABANDON_OUTPUT, requested_by, planned) as (
        found,
        plan,
        token,
    ):
        for key in plan.batches:
            _log.warning("%s: staged batch %s is abandoned", found, key)
        if found.position is None or found.target is None:
            # Nothing says which batches are visible, so the table is forgotten as a whole; its files are not its own.
            with catalog_refusals(f"drop {found.staging}"):
                catalog.drop_table(found.staging)
            return plan
        abandoned = [AbandonedBatch(batch=batch, reason=AbandonReason.UNDECLARED) for batch in found.waiting]
        names = StagedOutput(stream=found.stream, output=output, target=found.target)
        restore_lost_mark(catalog, names, token=token)
        try:
            clear_staging(catalog, names, token=token, abandoned=abandoned)
        except StagingError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            _log.warning("%s", error)  # nothing of it can be read, and nothing is to be
            empty_staging_table(catalog, found.staging)
    return plan


@contextmanager
def _settling(
    catalog: Catalog,
    ledger: Ledger,
    declaration: StreamDeclaration,
    output: str,
    verb: SettlementVerb,
    requested_by: str,
    planned: str | None,
) -> Iterator[tuple[UndeclaredOutput, OutputSettlement, int]]:
    """Hold the lease of the stream, and save the event. Yields what waits, the plan, and the fencing token."""
    stream, what = declaration.stream, f"settling what is staged for the output {output}"
    plan_settlement(catalog, ledger, declaration, output=output, verb=verb)  # a refused command leaves no run behind
    with run_of_command(ledger, stream, CommandMode.SETTLEMENT, requested_by=requested_by, what=what) as run:
        found = _settled(catalog, declaration, output, verb)
        plan = _settlement(found, verb)
        plan.plan().require_same(planned)
        record_event(ledger, _event(plan, requested_by=requested_by))
        # The tables of a former output may have seen a higher token than a ledger that was replaced by an older copy.
        yield found, plan, max(run.token, found.token)


def _settlement(found: UndeclaredOutput, verb: SettlementVerb) -> OutputSettlement:
    return OutputSettlement(
        verb=verb,
        stream=found.stream,
        output=found.output,
        target=found.target,
        batches=tuple(batch.summary.key for batch in found.waiting),
        rows=found.rows,
    )


def _event(plan: OutputSettlement, *, requested_by: str) -> Event:
    actions = {
        OperationVerb.PUBLISH_OUTPUT: EventAction.PUBLISH_OUTPUT,
        OperationVerb.ABANDON_OUTPUT: EventAction.ABANDON_OUTPUT,
    }
    return Event(
        name=plan.stream,
        actor=Actor.person(requested_by),
        action=actions[plan.verb],
        reason=REQUESTED,
        explanation=plan.sentence(),
        evidence=plan.plan().evidence,
    )


def _settled(catalog: Catalog, declaration: StreamDeclaration, output: str, verb: SettlementVerb) -> UndeclaredOutput:
    declared = tuple(staged_outputs(declaration))
    tables = [load_output_tables(catalog, each) for each in declared]
    found = find_undeclared_outputs(catalog, declaration.stream, tables)
    one = next((each for each in found if each.output == output), None)
    if one is None and verb is OperationVerb.ABANDON_OUTPUT:
        one = _without_mark(catalog, next((each for each in declared if each.output == output), None))
    if one is None and any(each.output == output for each in declared):
        raise UsageError(
            f"The output {output} of stream {declaration.stream} is declared: its next start publishes what is staged.",
            next_step=f"Start the stream; `sluice batch reject {declaration.stream} BATCH` discards a single batch.",
        )
    if one is None or not one.waiting:
        raise UsageError(f"Nothing waits for an output {output} of stream {declaration.stream}.")
    if verb is OperationVerb.PUBLISH_OUTPUT:
        _refuse_unpublishable(one)
        _refuse_held(one, with_declared_outputs(catalog, declared, one.waiting))
    return one


def _without_mark(catalog: Catalog, output: StagedOutput | None) -> UndeclaredOutput | None:
    """A declared output whose mark is gone and cannot be found again, so that the stream does not start."""
    staging = load_table(catalog, output.staging) if output is not None else None
    if output is None or staging is None:
        return None
    try:
        plan_output(catalog, output)
    except MarkError:
        staged = staged_batches(staging, stream=output.stream, output=output.output)
        waiting = tuple(batch for batch in staged if not batch.is_overtaken)
        return UndeclaredOutput(stream=output.stream, output=output.output, target=output.target, waiting=waiting)
    return None


def _refuse_unpublishable(found: UndeclaredOutput) -> None:
    if found.position is None:
        raise UnpublishableError(
            f"The table {found.target or 'of the output'} that {found} was staged for is gone, or was created again.",
            next_step=f"Abandon the batches: `sluice batch abandon {found.stream} {found.output}`.",
        )
    if any(_mode_of(batch) == "merge" for batch in found.waiting):
        raise UnpublishableError(
            f"The batches of {found} were staged to be merged into {found.target}, which only a driver can do.",
            next_step="Declare the output as it was and start the stream once, or abandon the batches: "
            f"`sluice batch abandon {found.stream} {found.output}`.",
        )


def _refuse_held(found: UndeclaredOutput, batches: Sequence[Mapping[str, StagedBatch]]) -> None:
    """A batch that waits for a decision stays invisible in all of its outputs until there is one."""
    held = next((batch[found.output].summary.key for batch in batches if is_held(batch)), None)
    if held is not None:
        raise UnpublishableError(
            f"Batch {held} is held: it breaks a rule, and no person has decided to publish it.",
            next_step="Declare the output as it was, decide about the batch, and start the stream once; or abandon "
            f"what is staged: `sluice batch abandon {found.stream} {found.output}`.",
        )


def _mode_of(batch: StagedBatch) -> str:
    return batch.summary.mode.mode


def _publish(
    catalog: Catalog,
    names: StagedOutput,
    batches: Sequence[StagedBatch],
    *,
    mode: str,
    token: int,
    reached: Reached,
) -> None:
    if mode == "append":
        publish_append(catalog, names, batches, token=token, reached=reached)
        return
    replaced = ReplacedRange.TABLE if mode == "complete" else ReplacedRange.PARTITIONS
    publish_replace(catalog, names, batches, replaced=replaced, token=token, reached=reached)
