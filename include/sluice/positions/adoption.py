"""What an adoption of a table changes, how many rows are at stake, and the sentences that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sluice.positions.judge_position import disagreeing, is_written_back, judge_position
from sluice.positions.repair_writes import sentences_of_repetition
from sluice.positions.rolled_back_table import HiddenCommit
from sluice.positions.stream_position import StreamPosition, Witness
from sluice.publication.chain import MarkPosition
from sluice.publication.marks import RolledBackMark
from sluice.publication.staged_batch import StagedOutput
from sluice.sources.source_identities import Replaced


class AdoptionWay(StrEnum):
    """What is to become of the table."""

    UNDO = "undo"
    ACCEPT = "accept"
    REREAD = "reread"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedOutput:
    """A mark that main does not hold. held: what main shows of its output; none where it shows nothing.
    becomes: where it is set; unset where main moves instead. is_declared: whether a declared stream has the output.
    rows: the published rows that were taken out of main; unset when their number is unknown."""

    found: RolledBackMark
    held: MarkPosition | None
    becomes: MarkPosition | None
    rows: int | None
    is_declared: bool = True

    @property
    def names(self) -> StagedOutput:
        """The output."""
        return self.found.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What an adoption changes.

    head: the snapshot of main now. goal: the one that main is set to; unset where it stays.
    hidden: the commits that are not in main then. missing: those of others that a rollback took out of main, and that
        stay out; unset where what it took out is not listed any more.
    outputs: the marks that main does not hold. replaced: the table, by stream, where it was created again.
    rows_of_the_old: that the ledger knows to be published into the one that the new one replaced.
    staged: the outputs of which batches are staged for that one, with their rows: no start publishes them.
    rows_read_again: by a repair that follows; unset when that is unknown.
    forgets: the checkpoints of which copies go, and the batch: those that have committed later ones.
    taken_back: the streams of which the ledger forgets the batches behind one, with their generation and that batch:
        their numbers get other rows, and no repair follows that would do it.
    readers: the declared streams that read the table batch by batch. lookups: those that look it up at each batch.
    direct: the streams that Iceberg's own sink delivers into it, and that find it rolled back: there is no mark to set.
    """

    table: str
    way: AdoptionWay
    uuid: str
    head: int | None
    goal: int | None = None
    hidden: tuple[HiddenCommit, ...] = ()
    missing: tuple[HiddenCommit, ...] | None = ()
    outputs: tuple[AdoptedOutput, ...] = ()
    replaced: Mapping[str, Replaced] = field(default_factory=dict, hash=False)
    rows_of_the_old: int = 0
    staged: tuple[tuple[StagedOutput, int], ...] = ()
    rows_read_again: int | None = 0
    forgets: tuple[tuple[str, int], ...] = ()
    taken_back: tuple[tuple[str, int, int], ...] = ()
    readers: tuple[str, ...] = ()
    lookups: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the table can be set: no mark, and no id of a table that was created again."""
        return not self.outputs and not self.replaced

    @property
    def is_tagged(self) -> bool:
        """Whether a tag keeps what is hidden."""
        return any(one.rows for one in self.hidden)

    @property
    def rows_taken_out(self) -> int | None:
        """The rows of its streams that are gone; unset when their number is unknown."""
        gone = [one.rows for one in self.outputs]
        return None if None in gone else self.rows_of_the_old + sum(one or 0 for one in gone)

    @property
    def evidence(self) -> dict[str, Any]:
        """The facts, for a program."""
        return {
            "way": self.way,
            "uuid": self.uuid,
            "head": self.head,
            "goal": self.goal,
            "hides": [one.snapshot_id for one in self.hidden],
            "rows_hidden": sum(one.rows for one in self.hidden),
            "marks": {str(one.names): name_of(one.found.at) for one in self.outputs},
            "marks_become": {str(one.names): name_of(one.becomes) for one in self.outputs if one.becomes is not None},
            "accepts": sorted(self.replaced),
            "rows_taken_out": self.rows_taken_out,
            "misses": None if self.missing is None else [one.snapshot_id for one in self.missing],
            "readers": list(self.readers),
            "lookups": list(self.lookups),
            "rows_read_again": self.rows_read_again,
            "forgets_behind": {stream: f"{generation}:{batch}" for stream, generation, batch in self.taken_back},
        }


def stake_of(adoption: Adoption) -> int | None:
    """How many rows are at stake; unset when that is unknown."""
    if adoption.way is AdoptionWay.UNDO:
        return sum(one.rows for one in adoption.hidden)
    own = adoption.rows_read_again if adoption.way is AdoptionWay.REREAD else adoption.rows_taken_out
    return None if own is None or adoption.missing is None else own + sum(one.rows for one in adoption.missing)


def sentences_of(adoption: Adoption, then: Sequence[StreamPosition]) -> Iterator[str]:
    """What is found, and what is done about it. then: the positions of its streams afterwards."""
    table = adoption.table
    if adoption.is_empty and not adoption.direct:
        yield f"{table} is what its streams have published: nothing is changed."
    for stream in adoption.direct:
        yield f"{table} has no mark of {stream}, as Iceberg's own sink writes it: nothing is changed for that stream."
    for one in adoption.outputs:
        yield one.found.problem
        yield from _of_output(adoption, one)
    yield from _of_the_old(adoption)
    if adoption.goal is not None:
        yield f"Set main of {table} from snapshot {adoption.head} to snapshot {adoption.goal}."
    if adoption.hidden:
        kept = " A tag keeps them for a week." if adoption.is_tagged else ""
        yield f"Readers do not see {_commits('later', adoption.hidden)} any more: {_named(adoption.hidden)}.{kept}"
    yield from _of_others(adoption)
    for stream, generation, batch in adoption.taken_back:
        yield f"Forget the batches of {stream} behind {generation}:{batch} in the ledger: their numbers get other rows."
    yield from _of_readers(adoption)
    for seen in then:
        yield from _of_stream(adoption, seen)


def _of_stream(adoption: Adoption, seen: StreamPosition) -> Iterator[str]:
    """What a stream does afterwards."""
    if adoption.way is AdoptionWay.REREAD and any(one.names.stream == seen.stream for one in adoption.outputs):
        yield from sentences_of_repetition(seen.stream, seen.repeating, adoption.rows_read_again)
    if seen.stream not in adoption.direct:
        yield _next_command(seen)


def _of_the_old(adoption: Adoption) -> Iterator[str]:
    """What becomes of the rows of a table that was created again."""
    for stream, found in adoption.replaced.items():
        yield f"{found}."
        if adoption.way is AdoptionWay.ACCEPT:
            yield (
                f"Take {adoption.table} as it is: {stream} continues in it behind its newest batch, and the rows that "
                "it had published into the old one are gone: "
                f"{adoption.rows_of_the_old:,} by the ledger's newest batches."
            )
    for output, rows in adoption.staged:
        yield (
            f"{rows:,} rows of {output} are staged for the old one and are not published: before the next start, "
            f"`sluice batch abandon {output.stream} {output.output} --dry-run` shows what is discarded."
        )


def _of_output(adoption: Adoption, one: AdoptedOutput) -> Iterator[str]:
    rows = "an unknown number of" if one.rows is None else f"{one.rows:,}"
    if adoption.way is AdoptionWay.UNDO:
        yield f"{rows[0].upper()}{rows[1:]} rows of {one.names} come back."
    elif one.becomes == one.found.at:
        yield (
            f"Keep the mark of {one.names} at batch {name_of(one.found.at)}, on main as it is: {rows} rows of it are "
            "gone, and are not read again."
        )
    elif one.becomes is not None:
        again = adoption.rows_read_again
        read = "an unknown number of" if again is None else f"{again:,}"
        gone = "an unknown number" if one.rows is None else rows
        yield (
            f"Set the mark of {one.names} back from batch {name_of(one.found.at)} to {name_of(one.becomes)}, the "
            f"newest one in main: {gone} of its rows are gone, and {read} input rows are read again."
        )


def _of_others(adoption: Adoption) -> Iterator[str]:
    """What a rollback took out beside the batches of streams, and what is not said to come back."""
    if adoption.way is AdoptionWay.UNDO or not adoption.outputs:
        return
    if adoption.missing is None:
        yield (
            f"What others had committed to {adoption.table} and was taken out as well is unknown: the snapshots are "
            "expired."
        )
    elif adoption.missing:
        yield f"{_commits('other', adoption.missing)} stay out, and are not read again: {_named(adoption.missing)}."


def _of_readers(adoption: Adoption) -> Iterator[str]:
    rows = adoption.hidden if adoption.way is AdoptionWay.UNDO else adoption.outputs
    if not any(one.rows != 0 for one in rows):
        return
    yield from (sentence_of_lookup(one, adoption.table) for one in adoption.lookups)
    if not adoption.readers:
        return
    readers, command = ", ".join(adoption.readers), f"`sluice stream continue {adoption.readers[0]} --dry-run`"
    stays = f"What they have read of the rows that are not in main stays in their outputs: {command} counts it."
    again = " They read it once more when it is published again." if adoption.way is AdoptionWay.REREAD else ""
    yield f"{readers} read {adoption.table}. {stays}{again}"


def sentence_of_lookup(stream: str, table: str) -> str:
    """What is said of a stream that reads a table as it is at each batch: which rows it has found there is not kept."""
    return (
        f"{stream} looks {table} up as it is at each batch: what it has published with the rows that are not in main "
        "stays as it is."
    )


def _commits(which: str, commits: Sequence[HiddenCommit]) -> str:
    added, removed = sum(one.added for one in commits), sum(one.removed for one in commits)
    rows = f"{added:,} rows" + (f" and {removed:,} removed ones" if removed else "")
    return f"{len(commits)} {which} commits with {rows}"


def _named(commits: Sequence[HiddenCommit]) -> str:
    named = "; ".join(map(str, commits[:6]))
    return f"{named}; and {len(commits) - 6} more" if len(commits) > 6 else named


def _next_command(seen: StreamPosition) -> str:
    findings = [
        one for one in disagreeing(judge_position(seen)) if one.witness is not Witness.MARK or is_written_back(one)
    ]
    if not findings:
        return f"Nothing is started. Then: `sluice stream start {seen.stream}`."
    return f"Nothing is started. Then: `sluice stream repair {seen.stream}`, and start it."


def name_of(position: MarkPosition) -> str:
    """A position, for a person."""
    return f"{position.generation}:{position.batch}"
