"""Reads, observes and judges many streams: for `sluice stream status`, the pages and other live tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.launching.launcher_port import Launcher
from sluice.ledger.batches import StreamTotals, all_totals, newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation
from sluice.ledger.progress_samples import LAG_UNKNOWN, LagObservation
from sluice.ledger.stream_figures import read_figures
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.orphaned_runs import OrphanedRun
from sluice.supervision.stream_verdict import StreamVerdict, judge_stream
from sluice.supervision.supervision_values import StreamObservation
from sluice.supervision.supervisor import observe, read_to_judge


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStream:
    """One stream as it is now. declared: unset when no valid file declares it."""

    declared: LoadedStream | None
    seen: StreamObservation
    verdict: StreamVerdict

    @property
    def stream(self) -> str:
        """Its name."""
        return self.seen.stream

    @property
    def mode(self) -> str:
        """How it runs, as it is declared, else by its newest run; empty when it never ran."""
        if self.declared is not None:
            return self.declared.declaration.mode
        return "" if self.seen.newest_run is None else self.seen.newest_run.mode

    @property
    def is_shown(self) -> bool:
        """Whether a list of all streams has it: it is declared, or its run is not as it should be."""
        return self.declared is not None or not self.verdict.is_healthy


def judge_streams(
    ledger: Ledger,
    launcher: Launcher,
    declared: Iterable[LoadedStream],
    *,
    orphans: Iterable[OrphanedRun] = (),
    others: Iterable[str] = (),
    heard_within: timedelta = timedelta(0),
) -> tuple[JudgedStream, ...]:
    """Look at streams now. Nothing is changed.

    Parameters
    ----------
    launcher: observes whether drivers are alive.
    orphans: runs that fit no declaration; their streams come last.
    others: streams that only the ledger knows.
    heard_within: see `observe`.
    """
    by_name, unfit = {wanted.name: wanted for wanted in declared}, {orphan.stream: orphan for orphan in orphans}
    known = read_to_judge(ledger, by_name.values(), others=(*others, *unfit))
    judged = []
    for name in (*(name for name in known if name not in unfit), *unfit):
        wanted, seen = by_name.get(name), observe(known[name], launcher, heard_within=heard_within)
        verdict = judge_stream(wanted, seen, unfit.get(name))
        judged.append(JudgedStream(declared=wanted, seen=seen, verdict=verdict))
    return tuple(judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow(JudgedStream):
    """One stream with its figures: a row of a table. lag: of its sources now; unknown where they were not asked."""

    totals: StreamTotals
    rows_per_second: float
    lag: LagObservation


def observe_rows(
    streams: Iterable[LoadedStream],
    *,
    ledger: Ledger,
    launcher: Launcher,
    heads: SourceHeads | None,
    orphans: Iterable[OrphanedRun] = (),
    others: Iterable[str] = (),
) -> tuple[StreamRow, ...]:
    """Look at streams as `judge_streams` does, with their figures.

    Parameters
    ----------
    heads: observes the sources of declared streams; without it the lag is unknown.
    """
    judged = judge_streams(ledger, launcher, streams, orphans=orphans, others=others)
    names = [one.stream for one in judged]
    figures, sums = read_figures(ledger, names), all_totals(ledger, names)
    return tuple(
        StreamRow(
            declared=one.declared,
            seen=one.seen,
            verdict=one.verdict,
            totals=sums[one.stream],
            rows_per_second=figures[one.stream].read_per_second,
            lag=LAG_UNKNOWN if heads is None else _lag(one, ledger, heads),
        )
        for one in judged
    )


def _lag(judged: JudgedStream, ledger: Ledger, heads: SourceHeads) -> LagObservation:
    """Against the newest batch of now: what was read since an older one would count as unread."""
    if judged.declared is None:
        return LAG_UNKNOWN
    generation = find_generation(ledger, judged.stream)
    if generation is None:
        return heads.observe_lag(judged.declared.declaration, None)
    newest = newest_batch(ledger, judged.stream, generation=generation.generation)
    return heads.observe_lag(judged.declared.declaration, newest, known=generation.identities)
