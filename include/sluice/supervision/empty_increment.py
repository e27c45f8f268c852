"""Decides whether an increment would find nothing to do, from the ledger and the heads of its sources alone."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.batches import BatchObservation, newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation
from sluice.ledger.held_batches import find_held
from sluice.ledger.progress_samples import LagObservation
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import newest_run
from sluice.sources.source_heads import SourceHeads
from sluice.sources.source_identities import NONE_KNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementObservation:
    """What was seen before an increment.

    generation: the open one; none before the first run. digest: of the declaration and the transformation as they are.
    lag: how far the newest batch is behind the heads of the sources.
    must_report: whether it would have something to report though no row is unread; see `SourceHeads.must_report`.
    has_decision: whether a person has decided about a held batch, which the next run carries out.
    """

    generation: int | None
    newest_run: RunObservation | None
    newest_batch: BatchObservation | None
    digest: str
    lag: LagObservation
    must_report: bool = False
    has_decision: bool = False


def observe_increment(ledger: Ledger, heads: SourceHeads, stream: LoadedStream) -> IncrementObservation:
    """Observe an incremental stream and its sources, without Spark.

    Raises
    ------
    LedgerError, LakehouseError: when the ledger or a table cannot be reached. Another source that cannot be reached
        makes the lag unknown.
    """
    generation = find_generation(ledger, stream.name)
    batch, held = newest_batch(ledger, stream.name), find_held(ledger, stream.name)
    return IncrementObservation(
        generation=generation.generation if generation is not None else None,
        newest_run=newest_run(ledger, stream.name),
        newest_batch=batch,
        digest=stream.digest,
        lag=heads.observe_lag(
            stream.declaration, batch, known=generation.identities if generation is not None else NONE_KNOWN
        ),
        must_report=heads.must_report(stream.declaration, batch),
        has_decision=held is not None and held.decision is not None,
    )


def has_nothing_to_do(seen: IncrementObservation) -> bool:
    """Whether an increment would read no row and repair nothing; unknown is never taken for nothing.

    A run that did not finish may have left a batch behind, a changed declaration has to be checked against the
    checkpoint, a new generation reads its input from where the reset says, and what a person has decided about a held
    batch is carried out by a run: Spark has committed that batch, so a folder has no unread file of it.
    """
    run, batch = seen.newest_run, seen.newest_batch
    if run is None or batch is None:
        return False
    goes_on = run.state is RunState.FINISHED and run.declaration_digest == seen.digest
    is_same_generation = run.generation == batch.key.generation == seen.generation
    is_read = not seen.lag.problem and seen.lag.undone == 0 and not seen.must_report
    return goes_on and is_same_generation and is_read and not seen.has_decision
