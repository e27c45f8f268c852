"""Decides what is written back into a checkpoint that disagrees with the other witnesses, or why nothing can be. Pure.

A checkpoint has to stand at the newest batch D that every table has, visible or staged: `offsets` and `commits` up to
D, and the state at version D + 1. Without state, all that follows from the offsets of D, which the tables keep. State
cannot be written, and is only taken a step back: without the commit of D, Spark runs D again on the state before it,
and the mark says that its rows are visible. What stands beyond D is of tables that were set back: it goes, except for
the plan of D + 1, which Spark then runs as it was.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.checkpoints.checkpoint_copies import CheckpointCopy
from sluice.checkpoints.checkpoint_layout import (
    COMMITS,
    EMPTY_COMMIT,
    METADATA,
    OFFSETS,
    REPLAY,
    CheckpointContents,
    batch_metadata,
    commit_behind,
    entry_of,
    log_files,
    metadata_of,
    next_batch_metadata,
    offsets_of,
    query_id_in,
    state_stores,
)
from sluice.checkpoints.health_decision import commit_problem, judge_state, offset_problem
from sluice.ledger.generations import LONG_AGO
from sluice.ledger.recorded_checks import CheckpointFinding, CheckpointProperty
from sluice.operations import Refusal, RefusalReason
from sluice.positions.judge_position import HARMLESS
from sluice.positions.stream_position import StreamPosition, canonical_end, reads_within_snapshot, source_lines
from sluice.publication.direct_history import rolled_back_behind


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRepair:
    """What is removed from a checkpoint and written into it, in this order; the `metadata` last.

    stands_at: the newest committed batch then; -1 for none. runs_again: the batch that Spark runs again, which the
        tables hold; unset where none is.
    reads_from: the offsets from which something is read again, from `canonical_offsets`; empty where nothing is, unset
        where something is and nothing shows from where.
    reads_until: how far that was read before; empty where nothing is, unset where it is unknown.
    rows_read_again: of batches that were read before; unset when their number is unknown.
    restores: the copy that is put in the place of the checkpoint first; unset without one.
    replays: the batches that the next run takes the state of the copy through, before it begins.
    """

    stands_at: int
    runs_again: int | None = None
    removes: tuple[str, ...] = ()
    writes: Mapping[str, str] = field(default_factory=dict, hash=False)
    reads_from: str | None = ""
    reads_until: str | None = ""
    rows_read_again: int | None = 0
    restores: CheckpointCopy | None = None
    replays: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.removes and not self.writes and self.restores is None


class _UnprovableError(Exception):
    """Something that has to be written is not known. It becomes a refusal."""


def decide_repair(seen: StreamPosition) -> CheckpointRepair | Refusal:
    """What brings the checkpoint to where the tables stand."""
    if seen.contents is None:
        return _refusal(seen, "its checkpoint cannot be read")
    checkpoint = _Checkpoint(seen, seen.contents)
    try:
        repair = checkpoint.repair()
    except _UnprovableError as problem:
        return _refusal(seen, str(problem))
    forgets = seen.remembers_batches and checkpoint.has_behind(repair.stands_at, repair.removes)
    if forgets or (seen.has_other_outputs and set(repair.writes) - {METADATA}):
        return refusal_of_unmarked(seen)
    return repair


def refusal_of_unmarked(seen: StreamPosition) -> Refusal:
    """Why nothing is written back where outputs without a mark are delivered."""
    if table := seen.rolled_back_direct:
        error = rolled_back_behind(seen.committed, stream=seen.stream, target=table)
        return Refusal(reason=RefusalReason.OTHER_REMEDY, sentence=error.message, next_step=error.next_step or "")
    if any(one.is_direct for one in seen.tables):
        return _refusal(seen, "Iceberg's own sink delivers it, which keeps no offsets of a batch")
    return _refusal(seen, "it has outputs without a mark, of which nothing shows how far they are delivered")


def _refusal(seen: StreamPosition, problem: str) -> Refusal:
    return Refusal(
        reason=RefusalReason.NOT_PROVABLE,
        sentence=f"The checkpoint of {seen.stream} cannot be written back: {problem}.",
        next_step=f"`sluice stream reset {seen.stream} --dry-run` shows what reading the inputs again repeats.",
    )


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint beside the position that it has to take."""

    seen: StreamPosition
    contents: CheckpointContents

    def repair(self) -> CheckpointRepair:
        done = self.seen.done
        if done is None:
            return self._without_marks()
        self._require_one_position(done)
        stands = self._stands_at(done)
        planned = self._planned(stands, done)
        logs = {**self._commits(stands), **self._offsets(stands, planned)}
        removes = tuple(self._removes(stands, planned, written=logs))
        if removes or logs:
            self._require_memory(stands, is_first_again=stands < 0 <= done)
            if stands < done != self.seen.planned and (lost := self.seen.lost_input(done)):
                raise _UnprovableError(f"batch {done} has to be run again, and {lost}")
        back_from = done if self.seen.back_from is None else self.seen.back_from
        newest = max(self.seen.committed, self.seen.newest_visible, done, back_from, self.seen.newest_taken_back)
        # Without a later commit, a whole checkpoint would let a driver start behind a half of a rewind.
        is_changed = bool(removes or logs) or self.seen.committed <= done < back_from
        return CheckpointRepair(
            stands_at=stands,
            runs_again=done if stands < done else None,
            removes=(METADATA, *removes) if is_changed else (),
            writes={**logs, **self._metadata(is_last=is_changed)},
            reads_from=self._known_end(stands) if newest > stands else "",
            reads_until=self._known_end(newest) if newest > stands else "",
            rows_read_again=self._rows_of(range(stands + 1, newest + 1)),
        )

    def has_behind(self, batch: int, paths: Collection[str]) -> bool:
        """Whether some files are what the logs know of a batch behind another one, as far as it can be read."""
        logs = ((log, number) for log in (OFFSETS, COMMITS) for number in self._good(log) if number > batch)
        return any(f"{log}/{number}" in paths for log, number in logs)

    def _without_marks(self) -> CheckpointRepair:
        health = self.seen.health
        others = {one.name for one in health.problems} - {CheckpointProperty.IDENTITY} if health is not None else set()
        if others - HARMLESS:
            raise _UnprovableError("no output of it has a mark, so nothing shows where it stood")
        return CheckpointRepair(stands_at=self.seen.committed, writes=self._metadata(is_last=False))

    def _require_one_position(self, done: int) -> None:
        if self.seen.newest_visible > done + 1:
            raise _UnprovableError(
                f"its outputs hold batches up to {done} and {self.seen.newest_visible}, and Spark runs only the next "
                "one as it was planned; a rewind or adoption that was interrupted is completed by typing it again"
            )

    def _require_memory(self, stands: int, *, is_first_again: bool) -> None:
        if any(one.path.startswith("sources/") for one in self.contents.files):
            for name in self.seen.own_memory:
                if not self._remembers(name, stands):
                    raise _UnprovableError(
                        f"what was read of the input {name} up to batch {stands} stood in the checkpoint alone, which "
                        "is older than that"
                    )
            return
        if self.seen.own_memory:
            raise _UnprovableError(
                f"what was read of the input {self.seen.own_memory[0]} stood in the checkpoint alone, and is lost"
            )
        if is_first_again:
            raise _UnprovableError("where its first batch begins stood in the checkpoint alone, and is lost")

    def _remembers(self, name: str, stands: int) -> bool:
        """Whether what a source keeps in the checkpoint reaches to the end of a batch. A source of files has a log of
        its own there; of another one it is known only while the checkpoint has planned the batch."""
        ends = self.seen.end_of(stands)
        end = json.loads(ends).get(name) if ends is not None else None
        if not isinstance(end, dict) or "logOffset" not in end or name not in self.seen.sources:
            return stands <= self.seen.planned
        log = f"sources/{self.seen.sources.index(name)}/"
        names = (one.path.removeprefix(log) for one in self.contents.files if one.path.startswith(log))
        numbers = (name.removesuffix(".compact") for name in names)
        return max((int(one) for one in numbers if one.isdecimal()), default=-1) >= int(end["logOffset"])

    # Where it stands.

    def _stands_at(self, done: int) -> int:
        newest = max((one for one in self._good(COMMITS) if one <= done), default=-1)
        if not self.seen.keeps_state:
            is_open = newest == done - 1 and f"{COMMITS}/{done}" not in self._paths and self._is_right(done)
            # The driver died before the commit, and Spark runs it again by itself; where more is planned, it was done.
            is_last = max(self.seen.planned, self.seen.newest_visible) <= done
            return newest if is_open and is_last and not self._reads_on(done) else done
        if done in self._good(OFFSETS) and not self._is_right(done):
            raise _UnprovableError(f"its state is of another batch {done} than the one in the tables")
        for stands in (newest, newest - 1):
            if stands >= max(done, self.seen.newest_visible) - 1 and self._has_state(stands):
                return stands
        raise _UnprovableError(self._lost_state(newest, done))

    def _has_state(self, stands: int) -> bool:
        if stands < 0:
            return True  # the first batch begins without any
        return self._state_at(stands).healthy

    def _state_at(self, stands: int) -> CheckpointFinding:
        return judge_state(self.contents, committed_batch=stands, is_kept=True)

    def _lost_state(self, newest: int, done: int) -> str:
        known = self.seen.batches.get(done)
        kept = "" if known is None or known.state_rows is None else f" ({known.state_rows:,} rows of state)"
        if not state_stores(self.contents.files):
            return f"its state is lost, and with it what batches up to {done} left open{kept}"
        held = max(done, self.seen.newest_visible)
        if newest < held - 1:
            batches = range(newest + 1, held + 1)
            return (
                f"its state ends behind batch {newest}, and the tables hold batches up to {held}: {len(batches)} "
                f"batches {_rows(self._rows_of(batches))}would be missing in it"
            )
        return f"its state is damaged{kept}: {self._state_at(newest).message}"

    def _planned(self, stands: int, done: int) -> int | None:
        """The batch whose plan has to be kept; none where Spark may plan the next one as it likes."""
        if self.seen.back_from is not None:
            return self._planned_before(stands, done)
        if stands < done or self.seen.newest_visible > done:
            return stands + 1
        good = self._good(OFFSETS)
        is_planned = stands + 1 in good and (stands not in good or self._is_right(stands))
        return stands + 1 if is_planned or self._reads_on(stands) else None

    def _planned_before(self, stands: int, done: int) -> int | None:
        """The batch whose plan has to be kept at a rewind to batch `done`. The one behind that was run before, and is
        planned again unless it reads further in a snapshot file by file, as a continuation has planned it. When nothing
        knows that, the next start says so."""
        if stands == done:
            return done + 1 if self._reads_on(done) else None
        if self._reads_on(done):
            raise _UnprovableError(f"batch {done} has to be run again, and then the plan of batch {done + 1} is lost")
        return stands + 1

    def _reads_on(self, number: int) -> bool:
        """Whether the batch behind one reads further within its snapshot. A plan says so that follows the right one."""
        follows = self.seen.end_of(number + 1) is not None or self._is_right(number)
        ends, following = self._ends_by_source(number), self._ends_by_source(number + 1)
        return (follows or number not in self._good(OFFSETS)) and reads_within_snapshot(ends, following)

    def _ends_by_source(self, number: int) -> Sequence[str | None]:
        """Where a batch ends, in the order of the offset log; empty where that is unknown."""
        ends = self.seen.end_of(number)
        lines = None if ends is None else source_lines(ends, self._sources(ends))
        return offsets_of(self._good(OFFSETS).get(number, "")) if lines is None else lines

    def _first_kept(self, newest: int) -> int:
        """The oldest entry that is connected to the newest one; 0 when all of them are."""
        present = {*log_files(self.contents.files, OFFSETS), newest, newest - 1}
        first = newest
        while first - 1 in present:
            first -= 1
        return first if any(one < first for one in present) else 0

    @property
    def _paths(self) -> frozenset[str]:
        return frozenset(one.path for one in self.contents.files)

    # What is written.

    def _metadata(self, *, is_last: bool) -> dict[str, str]:
        """The query's id, where it is missing, or another one. is_last: whether it was removed before others change: no
        run starts without it."""
        found, wanted = query_id_in(self.contents.texts.get(METADATA, "")), self.seen.query_id
        is_damaged = METADATA in self.contents.damaged
        is_right = found == wanted and not is_damaged
        return {} if is_right and not is_last else {METADATA: json.dumps({"id": wanted}, separators=(",", ":"))}

    def _offsets(self, stands: int, planned: int | None) -> dict[str, str]:
        newest = stands if planned is None else planned
        needed = [one for one in (stands - 1, stands, newest) if one >= 0]
        return {
            f"{OFFSETS}/{number}": self._entry(number, is_loose=number < stands)
            for number in dict.fromkeys(needed)
            if not self._is_right(number, is_loose=number < stands)
        }

    def _is_right(self, number: int, *, is_loose: bool = False) -> bool:
        text = self._good(OFFSETS).get(number)
        if text is None:
            return False
        ends = self.seen.end_of(number)
        if is_loose or ends is None or not self._sources(ends):
            return True
        return canonical_end(offsets_of(text), self._sources(ends)) == ends

    def _entry(self, number: int, *, is_loose: bool) -> str:
        """The entry of a batch. is_loose: it only has to be there, as the one before a committed batch has."""
        ends = self.seen.end_of(number) or (self.seen.end_of(number + 1) if is_loose else None)
        if ends is None:
            raise _UnprovableError(f"neither the tables nor the ledger have the end offsets of batch {number}")
        lines = source_lines(ends, self._sources(ends))
        if lines is None:
            raise _UnprovableError(f"in which order the query reads its sources is unknown: {ends}")
        return entry_of(self._batch_metadata(number, is_loose=is_loose), lines)

    def _known_end(self, number: int) -> str | None:
        """The end of a batch; else as the checkpoint itself has it, as of the one behind which a continuation began."""
        if (known := self.seen.end_of(number)) is not None:
            return known
        text = self._good(OFFSETS).get(number)
        return canonical_end(offsets_of(text), self.seen.sources) if text is not None and self.seen.sources else None

    def _sources(self, ends: str) -> tuple[str, ...]:
        """The sources in Spark's order: as the ledger knows them, or the only one that there is."""
        names = [name for name in json.loads(ends) if not name.startswith("source ")]
        return self.seen.sources or (tuple(names) if len(names) == 1 else ())

    def _batch_metadata(self, number: int, *, is_loose: bool) -> str:
        known = self.seen.batches.get(number)
        offsets, commit = self._good(OFFSETS), self._good(COMMITS).get(number - 1)
        if number - 1 in offsets and commit is not None:
            return next_batch_metadata(metadata_of(offsets[number - 1]), commit)
        if self.seen.keeps_state and known is None and not is_loose:
            raise _UnprovableError(f"the watermark of batch {number} is unknown")
        nearest = min(offsets, key=lambda one: abs(one - number), default=None)
        conf = {} if nearest is None else json.loads(metadata_of(offsets[nearest])).get("conf", {})
        planned_at = known.planned_at if known is not None else None
        return batch_metadata(
            conf, planned_at=planned_at or LONG_AGO, watermark=known.watermark if known is not None else None
        )

    def _commits(self, stands: int) -> dict[str, str]:
        """The newest one first: with it the batch is done, whatever interrupts the repair."""
        good, written = self._good(COMMITS), dict[str, str]()
        for number in (stands, stands - 1):
            if number < 0 or number in good or (number < stands and self.seen.keeps_state):
                continue
            offsets = self._good(OFFSETS).get(number)
            written[f"{COMMITS}/{number}"] = EMPTY_COMMIT if offsets is None else commit_behind(metadata_of(offsets))
        return written

    # What goes.

    def _removes(self, stands: int, planned: int | None, *, written: Mapping[str, str]) -> Iterator[str]:
        """The newest first: a plan before the state behind it, and that before its commit. So a repair that is
        interrupted finds the same to do."""
        newest = stands if planned is None else planned
        first = self._first_kept(newest)
        for number, one in sorted(log_files(self.contents.files, REPLAY).items(), reverse=True):
            if self.seen.done is not None and number > self.seen.done:
                yield one.path
        for number, one in sorted(log_files(self.contents.files, OFFSETS).items(), reverse=True):
            if (number > newest or number < first) and one.path not in written:
                yield one.path
        yield from self._removed_state(stands + 1)
        for number, one in sorted(log_files(self.contents.files, COMMITS).items(), reverse=True):
            if (number > stands or number < first) and one.path not in written:
                yield one.path

    def _removed_state(self, version: int) -> Iterator[str]:
        """What is beyond a version. Without a later commit it is of a batch that Spark runs again and overwrites."""
        if self.seen.committed < version:
            return
        stores = state_stores(self.contents.files).values()
        later = [found for store in stores for found in store if found.version > version]
        yield from (found.file.path for found in sorted(later, key=lambda one: (-one.version, one.file.path)))

    # What is read again.

    def _rows_of(self, batches: range) -> int | None:
        rows = [known.rows for one in batches if (known := self.seen.batches.get(one)) is not None]
        counted = [one for one in rows if one is not None]
        return sum(counted) if len(counted) == len(batches) else None

    def _good(self, log: str) -> Mapping[int, str]:
        """The entries of a log that can be read, by batch."""
        problem_of = offset_problem if log == OFFSETS else commit_problem
        texts = {
            number: self.contents.texts.get(one.path)
            for number, one in log_files(self.contents.files, log).items()
            if one.path not in self.contents.damaged
        }
        return {number: text for number, text in texts.items() if text is not None and problem_of(text) is None}


def _rows(rows: int | None) -> str:
    return "" if rows is None else f"with {rows:,} rows "
