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
OPEN, APART = "its state is lost, and with it what batches up to", "its outputs hold batches up to"
"""What a refusal says would be lost."""

STATELESS, STATEFUL = (Kind.A, Kind.I, Kind.T), (Kind.W, Kind.H, Kind.G)
PLAIN, RICH = (*STATELESS, *STATEFUL), (Kind.J, Kind.S, Kind.P, Kind.D, Kind.M, Kind.K)
"""What is added to every damage, and what is added only to those that matter to its state."""


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
    yield from _each(STATEFUL, "1", "folder and copies gone", damages.copies_gone_too, says=OPEN, **refused)
    yield from _each(STATELESS, "1", "logs gone", damages.logs_gone, found=BEHIND)
    for name, damage in _LOG.items():
        yield from _each(PLAIN, "3", f"newest offsets {name}", of_log("offsets", damage))
    yield from _each(PLAIN, "4", "newest commit missing", of_log("commits", damages.unlink), found=(), way=Way.ITSELF)
    yield from _each(PLAIN, "4", "newest commit cut", of_log("commits", damages.truncate))
    yield from _each(PLAIN, "5", "metadata gone", damages.metadata_gone)
    yield from _each(PLAIN, "5", "metadata foreign", damages.metadata_foreign)
    for name, damage in _STATE.items():
        yield from _each(STATEFUL, "6", f"newest state {name}", damages.states(damage))
    yield from _each(STATEFUL, "6", "a state store gone", damages.store_gone)
    yield from _each(STATEFUL, "6", "all state gone", damages.state_gone)
    yield from _each(PLAIN, "7", "older copy", found=BEHIND, around=damages.older_copy_afterwards)
    yield from _each([Kind.T], "8", "one table of yesterday", found=AHEAD, around=_one_table, says=APART, **refused)
    back: dict[str, Any] = {
        "found": ("mark diverged",),
        "around": damages.rolled_back_afterwards,
        "way": Way.ADOPT,
    }
    yield from _each(PLAIN, "8", "rolled back and undone", adopts=AdoptionWay.UNDO, **back)
    yield from _each(PLAIN, "8", "rolled back and read again", adopts=AdoptionWay.REREAD, **back)
    yield from _each([Kind.A, Kind.I], "8", "rolled back and accepted", adopts=AdoptionWay.ACCEPT, lost=10, **back)
    again: dict[str, Any] = {"found": ("mark replaced",), "way": Way.ADOPT, "lost": 19, "adopts": AdoptionWay.ACCEPT}
    yield from _each([Kind.A, Kind.I], "9", "created again and accepted", damages.tables_created_again, **again)
    yield from _each(PLAIN, "20", "taken back", found=(), way=Way.REWIND, rewinds_to=1)
    yield from _each(PLAIN, "12", "ledger lost", damages.ledger_lost, found=FORGOTTEN, **second)
    yield from _each(PLAIN, "13", "generation forgotten", damages.generation_forgotten, found=FORGOTTEN, **second)
    both = (*FORGOTTEN, *DAMAGED)
    yield from _each(PLAIN, "13", "ledger and checkpoint lost", damages.both_lost, found=both, **second)
    yield from _each(PLAIN, "17", "catalog of yesterday", found=AHEAD, around=_tables)
    torn: dict[str, Any] = {"damage": damages.staging_lists_gone, "found": ("mark damaged",)}
    yield from _each([Kind.A, Kind.W], "21", "staging torn", **torn)
    torn["found"] = (*torn["found"], *AHEAD)
    yield from _each([Kind.A, Kind.W, Kind.G, Kind.T], "17", "catalog and staging of yesterday", around=_tables, **torn)
    yield from _rich_cells()


def _rich_cells() -> Iterator[Cell]:
    """What happens to streams with more than one state, or more than an aggregation keeps."""
    of_log = damages.of_log
    refused: dict[str, Any] = {"way": Way.REFUSED}
    yield from _each(RICH, "1", "folder gone", damages.folder_gone)
    yield from _each(RICH, "1", "killed since its copy", around=damages.killed_afterwards)
    yield from _each(
        [Kind.J, Kind.P, Kind.M], "1", "folder and copies gone", damages.copies_gone_too, says=OPEN, **refused
    )
    yield from _each([Kind.J, Kind.D], "3", "newest offsets missing", of_log("offsets", damages.unlink))
    yield from _each([Kind.S, Kind.M], "3", "newest offsets cut", of_log("offsets", damages.truncate))
    yield from _each(RICH, "4", "newest commit missing", of_log("commits", damages.unlink), found=(), way=Way.ITSELF)
    yield from _each([Kind.P, Kind.K], "4", "newest commit cut", of_log("commits", damages.truncate))
    yield from _each(RICH, "6", "newest state missing", damages.states(damages.unlink))
    yield from _each(RICH, "6", "newest state flipped", damages.states(damages.flip))
    yield from _each([Kind.J, Kind.M], "6", "a state store gone", damages.store_gone)
    yield from _each(RICH, "7", "older copy", found=BEHIND, around=damages.older_copy_afterwards)
    yield from _each([Kind.M], "8", "one table of yesterday", found=AHEAD, around=_one_table, says=APART, **refused)
    yield from _each([Kind.J], "12", "ledger lost", damages.ledger_lost, found=FORGOTTEN, generation=2)
    both = (*FORGOTTEN, *DAMAGED)
    ending = [kind for kind in RICH if kind is not Kind.D]  # that one cannot run over an empty input
    yield from _each(ending, "13", "ledger and checkpoint lost", damages.both_lost, found=both, generation=2)
    yield from _each(RICH, "17", "catalog of yesterday", found=AHEAD, around=_tables)
    yield from _each([Kind.J, Kind.M], "20", "taken back", found=(), way=Way.REWIND, rewinds_to=1)
    full: dict[str, Any] = {"is_disk_full": True}
    yield from _each([Kind.A, Kind.W, Kind.J], "18", "folder gone and disk full", damages.folder_gone, **full)
    yield from _each([Kind.H], "18", "state cut and disk full", damages.states(damages.truncate), **full)
    yield from _each([Kind.M], "18", "catalog of yesterday and disk full", found=AHEAD, around=_tables, **full)


CELLS = tuple(_cells())

SAMPLE = frozenset({
    "13-I-ledger_and_checkpoint_lost",
    "17-I-catalog_of_yesterday",
})  # fmt: skip
"""Those of every test run: one for each witness that is written back. It has a state that is put back
(`test_state_replay.py`), and the other ways without Spark: rewinds (`test_rewinds.py`), adoptions
(`test_adoptions.py`), and repairs that end early (`test_repair_commands.py`).
"""

OF_THE_FULL_RUN = frozenset({
    "1-A-folder_gone",
    "1-W-folder_gone",
    "6-W-newest_state_flipped",
    "13-A-ledger_and_checkpoint_lost",
    "17-A-catalog_of_yesterday",
    "8-I-rolled_back_and_read_again",
    "20-W-taken_back",
    "18-W-folder_gone_and_disk_full",
    "17-G-catalog_of_yesterday",
    "20-G-taken_back",
    "8-T-rolled_back_and_read_again",
    "6-J-a_state_store_gone",
    "13-J-ledger_and_checkpoint_lost",
})  # fmt: skip
"""One for each way in which something is written back, from Kafka too, and the same damages to a stream with state and
a MERGE, to one that reads its input twice, and to a join, which has several inputs and stores."""
