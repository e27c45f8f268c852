"""The matrix: the cells of the review that `sluice stream repair` answers, and others of their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tests.faults.ways_out import damages
from tests.faults.ways_out.cells import Cell, Way
from tests.faults.ways_out.kinds import Kind, Subject

from sluice.positions.adoption import AdoptionWay

DAMAGED, AHEAD, BEHIND = ("checkpoint damaged",), ("checkpoint ahead",), ("checkpoint behind",)
FORGOTTEN = ("ledger behind",)
STATELESS, STATEFUL = (Kind.A, Kind.I, Kind.T), (Kind.W, Kind.H, Kind.G)


def _tables(subject: Subject) -> AbstractContextManager[None]:
    return damages.set_back_afterwards(subject, subject.targets)


def _one_table(subject: Subject) -> AbstractContextManager[None]:
    return damages.set_back_afterwards(subject, subject.targets[:1])


def _each(
    kinds: Iterable[Kind],
    number: str,
    name: str,
    damage: Callable[[Subject], object] = lambda _: None,
    *,
    found: tuple[str, ...] = DAMAGED,
    **more: Any,
) -> Iterator[Cell]:
    """The same damage to streams of several kinds."""
    for kind in kinds:
        yield Cell(number=number, kind=kind, name=name, damage=damage, found=found, **more)


_LOG = {
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "cut": damages.truncate,
    "flipped": damages.flip,
    "missing": damages.unlink,
}
_STATE = {"missing": damages.unlink, "flipped": damages.flip, "cut": damages.truncate}


def _cells() -> Iterator[Cell]:
    of_log = damages.of_log
    refused: dict[str, Any] = {"way": Way.REFUSED}
    second: dict[str, Any] = {"generation": 2}
    yield from _each(STATELESS, "1", "folder gone", damages.folder_gone)
    yield from _each(STATEFUL, "1", "folder gone", damages.folder_gone)
    yield from _each(STATEFUL, "1", "killed since its copy", around=damages.killed_afterwards)
    yield from _each(STATEFUL, "1", "folder and copies gone", damages.copies_gone_too, **refused)
    yield from _each(STATELESS, "1", "logs gone", damages.logs_gone, found=BEHIND)
    for name, damage in _LOG.items():
        yield from _each(Kind, "3", f"newest offsets {name}", of_log("offsets", damage))
    yield from _each(Kind, "4", "newest commit missing", of_log("commits", damages.unlink), found=(), way=Way.ITSELF)
    yield from _each(Kind, "4", "newest commit cut", of_log("commits", damages.truncate))
    yield from _each(Kind, "5", "metadata gone", damages.metadata_gone)
    yield from _each(Kind, "5", "metadata foreign", damages.metadata_foreign)
    for name, damage in _STATE.items():
        yield from _each(STATEFUL, "6", f"newest state {name}", damages.states(damage))
    yield from _each(STATEFUL, "6", "a state store gone", damages.store_gone)
    yield from _each(STATEFUL, "6", "all state gone", damages.state_gone)
    yield from _each(Kind, "7", "older copy", found=BEHIND, around=damages.older_copy_afterwards)
    yield from _each([Kind.T], "8", "one table of yesterday", found=AHEAD, around=_one_table, **refused)
    back: dict[str, Any] = {
        "found": ("mark diverged",),
        "around": damages.rolled_back_afterwards,
        "way": Way.ADOPT,
    }
    yield from _each(Kind, "8", "rolled back and undone", adopts=AdoptionWay.UNDO, **back)
    yield from _each(Kind, "8", "rolled back and read again", adopts=AdoptionWay.REREAD, **back)
    yield from _each([Kind.A, Kind.I], "8", "rolled back and accepted", adopts=AdoptionWay.ACCEPT, lost=10, **back)
    again: dict[str, Any] = {"found": ("mark replaced",), "way": Way.ADOPT, "lost": 19, "adopts": AdoptionWay.ACCEPT}
    yield from _each([Kind.A, Kind.I], "9", "created again and accepted", damages.tables_created_again, **again)
    yield from _each(Kind, "20", "taken back", found=(), way=Way.REWIND, rewinds_to=1)
    yield from _each(Kind, "12", "ledger lost", damages.ledger_lost, found=FORGOTTEN, **second)
    yield from _each(Kind, "13", "generation forgotten", damages.generation_forgotten, found=FORGOTTEN, **second)
    both = (*FORGOTTEN, *DAMAGED)
    yield from _each(Kind, "13", "ledger and checkpoint lost", damages.both_lost, found=both, **second)
    yield from _each(Kind, "17", "catalog of yesterday", found=AHEAD, around=_tables)


CELLS = tuple(_cells())

SAMPLE = frozenset({
    "1-A-folder_gone",
    "1-W-folder_gone",
    "6-W-newest_state_flipped",
    "13-A-ledger_and_checkpoint_lost",
    "17-A-catalog_of_yesterday",
    "8-I-rolled_back_and_read_again",
    "20-W-taken_back",
})  # fmt: skip
"""Those of every test run: one for each way in which something is written back."""

OF_THE_FULL_RUN = frozenset({"17-G-catalog_of_yesterday", "20-G-taken_back", "8-T-rolled_back_and_read_again"})
"""The same damages to a stream with state and a MERGE, and to one that reads its input twice; every test run has them
without that."""
