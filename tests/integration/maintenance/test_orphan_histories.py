"""Random lives of a table: no removal moves a file that was ever visible, or that a table refers to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from uuid import uuid4

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import delete
from tests.fixtures.drill import sampled
from tests.fixtures.left_files import Yard, all_tables, catalog_place, listed, yard
from tests.integration.maintenance.test_orphan_guards import pointers, refer_to, restore

from sluice.errors import SluiceError
from sluice.ledger.events import EventAction
from sluice.ledger.run_leases import Run
from sluice.publication.data_files import Writer, WriterKind
from sluice.publication.mark_moves import reject_batch
from sluice.publication.staged_batch import StagedBatch

__all__ = ["catalog_place", "yard"]

STATES, STEPS = range(200), 14


@dataclass(slots=True, kw_only=True)
class Life:
    """One table's life. elsewhere: another catalog on the same files. visible: every file that a table but a staging
    one ever listed, in whatever state of a catalog. backups: of the catalog. moved: by removals."""

    yard: Yard
    chance: Random
    elsewhere: SqlCatalog
    batch: int = 2
    visible: set[str] = field(default_factory=set)
    backups: list[dict[str, str]] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)

    def see(self) -> None:
        """Remember what tables list now."""
        for catalog in (self.yard.bench.catalog, self.elsewhere):
            for table in all_tables(catalog):
                if table.name()[0] != "staging":
                    self.visible |= listed(table)

    def publish(self) -> None:
        self.yard.bench.publish(self.stage())

    def stage(self) -> StagedBatch:
        self.batch += 1
        return self.yard.bench.stage(self.batch - 1, [self.batch])

    def publish_waiting(self) -> None:
        self.yard.bench.publish(*self.yard.bench.plan().ready, merge_small=self.chance.random() < 0.5)

    def reject(self) -> None:
        batch = self.stage()
        reject_batch(self.yard.bench.catalog, self.yard.bench.output, batch, token=self.yard.bench.run)

    def clear(self) -> None:
        self.yard.bench.clear()

    def die(self) -> None:
        self.yard.die_writing(self.batch)
        self.yard.begin()

    def next_run(self) -> None:
        self.yard.begin()
        self.yard.bench.recover()

    def compact(self) -> None:
        self.yard.bench.compact()

    def die_compacting(self) -> None:
        identity = uuid4().hex
        self.yard.announce(identity, EventAction.REWRITE_DATA_FILES)
        self.yard.die_as(Writer(kind=WriterKind.REWRITE, identity=identity), 0)

    def expire(self) -> None:
        self.yard.bench.expire_all_but_the_newest()

    def expire_some(self) -> None:
        table = self.yard.bench.target()
        newest = table.metadata.current_snapshot_id
        old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != newest]
        table.maintenance.expire_snapshots().by_ids(self.chance.sample(old, len(old) // 2)).commit()

    def roll_back(self) -> None:
        table = self.yard.bench.target()
        ids = [one.snapshot_id for one in table.history()]
        if ids:  # a table that was made again has none
            table.manage_snapshots().rollback_to_snapshot(self.chance.choice(ids)).commit()

    def write_as_another(self) -> None:
        self.yard.bench.write_as_another(self.chance.randrange(1000))

    def take_a_file(self) -> None:
        """A table that knows nothing of Sluice refers to a file, whatever it is."""
        path = self.chance.choice(sorted(self.yard.data_files()))
        with suppress(Exception):
            refer_to(self.yard, path)

    def register_elsewhere(self) -> None:
        name = f"n{uuid4().hex[:8]}"
        self.elsewhere.create_namespace(name)
        self.elsewhere.register_table(f"{name}.copy", self.yard.bench.target().metadata_location)

    def back_up(self) -> None:
        self.backups.append(pointers(self.yard.bench))

    def restore_catalog(self) -> None:
        if self.backups:
            restore(self.yard.bench, self.chance.choice(self.backups))

    def restore_ledger(self) -> None:
        ran = Run.__table__.c.number
        with self.yard.ledger.transaction() as connection:
            connection.execute(delete(Run).where(Run.stream == self.yard.bench.output.stream, ran % 2 == 0))

    def make_again(self) -> None:
        """Drop the table, and make another one of its name in its folder."""
        table, catalog = self.yard.bench.target(), self.yard.bench.catalog
        catalog.drop_table(self.yard.name)
        catalog.create_table(self.yard.name, table.schema(), location=table.location(), partition_spec=table.spec())
        with suppress(Exception):
            catalog.drop_table(self.yard.bench.output.staging)
        self.yard.begin()

    def remove(self) -> None:
        """A removal in the far future, and what it must not have moved."""
        self.yard.end()
        with suppress(SluiceError):
            moved = self.yard.remove(after=timedelta(days=self.chance.choice([4, 5, 30])))
            self.moved |= moved
            assert not moved & self.visible
            assert not moved & self.yard.needed(self.yard.bench.catalog, self.elsewhere)

    def bring_back(self) -> None:
        self.yard.removal().restore(self.yard.name)


ACTIONS: dict[Callable[[Life], object], int] = {
    Life.publish: 4,
    Life.stage: 2,
    Life.publish_waiting: 2,
    Life.reject: 2,
    Life.clear: 3,
    Life.die: 4,
    Life.next_run: 2,
    Life.compact: 2,
    Life.die_compacting: 2,
    Life.expire: 1,
    Life.expire_some: 1,
    Life.roll_back: 1,
    Life.write_as_another: 1,
    Life.take_a_file: 1,
    Life.register_elsewhere: 1,
    Life.back_up: 2,
    Life.restore_catalog: 1,
    Life.restore_ledger: 1,
    Life.make_again: 1,
    Life.remove: 3,
    Life.bring_back: 1,
}


@pytest.mark.parametrize("seed", sampled(STATES, [1], full=STATES))
def test_no_removal_moves_what_was_ever_visible(yard: Yard, seed: int) -> None:
    chance = Random(seed)  # noqa: S311  # a history, and no secret
    place = yard.bench.place
    elsewhere = SqlCatalog("elsewhere", uri=place.sql_url, warehouse=place.warehouse)
    life = Life(yard=yard, chance=chance, elsewhere=elsewhere)
    for action in [*chance.choices(list(ACTIONS), list(ACTIONS.values()), k=STEPS), Life.remove]:
        life.see()
        with suppress(SluiceError, ValueError):  # a step that a state refuses; pyiceberg's own refusals are ValueErrors
            action(life)
    elsewhere.close()
