"""The cells: a kind of stream, a damage, and what is to come of it by the one command that is offered.

Every cell is one story: four files are read, the stream is damaged, its position is observed, `sluice stream repair` is
planned and carried out unless it is refused, two more files come and are read. Then every row is compared with those
of a twin that was never damaged, by another engine.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from tests.faults.ways_out.kinds import Kind, Subject
from tests.fixtures.workshop import Workshop

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import CheckpointError, SluiceError
from sluice.ledger.connection import database_time
from sluice.positions.adopt_table import adopt_table
from sluice.positions.adoption import AdoptionWay
from sluice.positions.judge_position import disagreeing, judge_position
from sluice.positions.observe_position import observe_position
from sluice.positions.repair_stream import RepairPlan, plan_repair, repair_stream
from sluice.positions.rewind_plan import RewindPlan
from sluice.positions.rewind_stream import rewind_stream
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed

BEFORE, AFTER = (0, 1, 2, 3), (4, 5)
_BYTES_LEFT = 5
"""On a full disk: fewer than any file of a checkpoint has that is written in one piece."""


class Way(StrEnum):
    """How a stream comes to its end. ITSELF: without a command. REPAIR: by the one command. ADOPT: a person says what a
    table's rollback was, and the repair follows where it is needed. REWIND: a person takes stream and tables back to an
    earlier batch. REFUSED: the command says what would be lost, and
    the stream stays as it is."""

    ITSELF = "by itself"
    REPAIR = "repair"
    ADOPT = "adopt"
    REWIND = "rewind"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell.

    damage: of the stopped stream. around: what is kept before the last two of the four files, and put back afterwards.
    generation: the one that the four files are read in. found: how each witness that disagrees is judged.
    adopts: what becomes of the tables before the repair. lost: how many rows that leaves out, as its plan says.
    rewinds_to: the batch to which a person takes the stream back. is_disk_full: whether the disk is while the repair
    writes, at one place after another. says: of what is refused, what would be lost.
    """

    number: str
    kind: Kind
    name: str
    found: tuple[str, ...]
    way: Way = Way.REPAIR
    damage: Callable[[Subject], object] = lambda _: None
    around: Callable[[Subject], AbstractContextManager[None]] | None = None
    generation: int = 1
    adopts: AdoptionWay | None = None
    lost: int = 0
    rewinds_to: int | None = None
    is_disk_full: bool = False
    says: str = ""

    def __str__(self) -> str:
        return f"{self.number}-{self.kind}-{self.name.replace(' ', '_')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a cell. lost, doubled: rows beside those of the twin. plan: the words of the plan."""

    cell: Cell
    found: tuple[str, ...]
    way: Way
    lost: int = 0
    doubled: int = 0
    plan: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_equal(self) -> bool:
        """Whether the stream ended as its twin did."""
        return self.way is not Way.REFUSED and not self.lost and not self.doubled

    @property
    def line(self) -> str:
        """The cell in a printed matrix."""
        end = "equal" if self.is_equal else "as it was" if self.way is Way.REFUSED else f"-{self.lost} +{self.doubled}"
        return f"{self.cell!s:45} {', '.join(self.found) or 'all agree':25} {self.way:10} {end}"


def totals(outcomes: Sequence[Outcome]) -> Counter[str]:
    """How many cells ended equal or were refused; how many rows were doubled, or lost beyond what a plan counts."""
    return Counter(
        equal=sum(one.is_equal for one in outcomes),
        refused=sum(one.way is Way.REFUSED for one in outcomes),
        lost=sum(max(0, one.lost - one.cell.lost) for one in outcomes),
        doubled=sum(one.doubled for one in outcomes),
    )


@contextmanager
def _nothing(_: Subject) -> Iterator[None]:
    yield


def outcome_of(cell: Cell, subject: Subject) -> Outcome:
    """Tell the story of a cell."""
    subject.declare()
    for _ in range(cell.generation - 1):
        subject.run()
        subject.reset()
    subject.feed(BEFORE[:2])
    subject.run()
    with (cell.around or _nothing)(subject):
        subject.feed(BEFORE[2:])
        subject.run()
    cell.damage(subject)
    found = witnesses(subject)
    if cell.adopts is not None and sum(adopted(subject, cell.adopts)) < cell.lost:
        raise AssertionError("the plan of an adoption leaves rows out that it does not count")
    if cell.rewinds_to is not None:
        rewound(subject, cell.rewinds_to)
    plan = planned(subject)
    sentences = tuple(plan.sentences())
    if plan.is_refused:
        return Outcome(cell=cell, found=found, way=Way.REFUSED, plan=sentences)
    done = repaired_in_spite(subject) if cell.is_disk_full else repaired(subject, plan)
    subject.feed(AFTER)
    subject.run()
    wanted, got = Counter(undamaged(subject.workshop, cell.kind)), Counter(subject.content())
    is_written = not done.seen.is_empty
    return Outcome(
        cell=cell,
        found=found,
        way=_way_of(cell, is_written=is_written),
        lost=(wanted - got).total(),
        doubled=(got - wanted).total(),
        plan=sentences,
    )


def _way_of(cell: Cell, *, is_written: bool) -> Way:
    if cell.rewinds_to is not None and not is_written:
        return Way.REWIND
    return Way.ADOPT if cell.adopts else Way.REPAIR if is_written else Way.ITSELF


def rewound(subject: Subject, batch: int) -> RewindPlan:
    """Stream and tables taken back to a batch."""
    workshop = subject.workshop
    with subject.at_rest():
        return rewind_stream(
            workshop.ledger,
            workshop.catalog,
            load_declarations(workshop.folder),
            workshop.settings,
            stream=subject.stream,
            batch=batch,
            asked_by="a drill",
        )


def witnesses(subject: Subject) -> tuple[str, ...]:
    """The witnesses that disagree, and how."""
    workshop = subject.workshop
    now, declaration = database_time(workshop.ledger), workshop.stream(subject.stream).declaration
    seen = observe_position(workshop.ledger, workshop.catalog, declaration, workshop.settings, now=now)
    return tuple(f"{one.witness} {one.agreement}" for one in disagreeing(judge_position(seen)))


def planned(subject: Subject) -> RepairPlan:
    """The repair as it is shown."""
    workshop = subject.workshop
    return plan_repair(workshop.ledger, workshop.catalog, workshop.stream(subject.stream), workshop.settings)


def adopted(subject: Subject, way: AdoptionWay) -> Iterator[int]:
    """Adopt each table; the rows that each plan says are taken out."""
    workshop = subject.workshop
    declarations = load_declarations(workshop.folder)
    with subject.at_rest():
        for table in subject.targets:
            plan = adopt_table(
                workshop.ledger,
                workshop.catalog,
                declarations,
                workshop.settings,
                table=table,
                way=way,
                asked_by="a drill",
            )
            yield plan.evidence["rows_taken_out"] or 0


def repaired(subject: Subject, plan: RepairPlan, *, reached: Reached = unnoticed) -> RepairPlan:
    """The repair as it was shown, carried out."""
    workshop = subject.workshop
    return repair_stream(
        workshop.ledger,
        workshop.catalog,
        workshop.stream(subject.stream),
        workshop.settings,
        planned=plan.digest,
        asked_by="a drill",
        reached=reached,
    )


def repaired_in_spite(subject: Subject) -> RepairPlan:
    """The repair while the disk is full from its first change on, from its second, its fourth, and so on, until one is
    done: what each leaves behind is refused at a start, and completed by the same command."""
    before, places = subject.content(), 0
    while True:
        try:
            with _disk_full_after(places) as reached:
                done = repaired(subject, planned(subject), reached=reached)
        except CheckpointError as problem:
            if "cannot be written" not in str(problem):
                raise
        else:
            assert places, "the disk was not full"
            return done
        _require_refused(subject)
        assert subject.content() == before
        places = 2 * places or 1


@contextmanager
def _disk_full_after(changes: int) -> Iterator[Reached]:
    """What a repair reaches; after so many changes a file keeps only its first bytes in this process."""
    limits, passed = resource.getrlimit(resource.RLIMIT_FSIZE), list[CrashPoint]()

    def fill(point: CrashPoint) -> None:
        passed.append(point)
        if passed.count(CrashPoint.FILE_CHANGED) >= changes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (_BYTES_LEFT, limits[1]))

    try:
        yield fill
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _require_refused(subject: Subject) -> None:
    try:
        subject.run()
    except SluiceError:
        return
    raise AssertionError("a run started from what a repair has left half written")


_twins: dict[Kind, Sequence[tuple[object, ...]]] = {}


def undamaged(workshop: Workshop, kind: Kind) -> Sequence[tuple[object, ...]]:
    """The rows of the twin of a kind, which is read once for all cells."""
    if kind not in _twins:
        twin = Subject(workshop=workshop, kind=kind, suffix="twin")
        twin.declare()
        for files in (BEFORE[:2], BEFORE[2:], AFTER):
            twin.feed(files)
            twin.run()
        _twins[kind] = twin.content()
    return _twins[kind]
