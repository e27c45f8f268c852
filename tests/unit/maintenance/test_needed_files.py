"""Which files other tables refer to, while these change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from sluice.erasure.file_columns import key_of
from sluice.erasure.judged_metadata import listed_in
from sluice.errors import LakehouseError
from sluice.maintenance.needed_files import find_needed_files, other_tables, was_set_back

NUMBERS = pa.schema([("id", pa.int64())])


@dataclass
class _Then:
    """What happens once, right after a table of a name was loaded."""

    name: str = ""
    does: Callable[[], object] = field(default=lambda: None)


class Busy(SqlCatalog):
    """A catalog in which others act while its tables are looked at."""

    then = _Then()

    def load_table(self, identifier: str | Identifier) -> Table:
        """The table; then something happens to it."""
        table = super().load_table(identifier)
        if ".".join(table.name()) == self.then.name:
            then, self.then = self.then, _Then()
            then.does()
        return table


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Busy]:
    """A catalog with a target, which has one file, and another table."""
    catalog = Busy("busy", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    catalog.create_table("a.target", NUMBERS).append(pa.table({"id": [1]}))
    catalog.create_table("a.other", NUMBERS)
    yield catalog
    catalog.close()


def live(catalog: Busy, table: str = "a.target") -> str:
    """The one file of a table."""
    (task,) = catalog.load_table(table).scan().plan_files()
    return task.file.file_path


def test_a_table_is_given_in_the_state_in_which_a_file_was_found(catalog: Busy) -> None:
    path = live(catalog)
    catalog.then = _Then("a.other", lambda: catalog.load_table("a.other").add_files([path]))
    (other,) = other_tables(catalog, [path.rpartition("/")[2]], target="a.target")
    assert bool(other.listed) == bool(listed_in(other.table, {key_of(path)}))


@pytest.mark.parametrize("by", ["erasure", "orphans"])
def test_a_table_that_gets_another_name_meanwhile_is_looked_at(catalog: Busy, by: str) -> None:
    for one in ("a.b1", "a.b2", "a.b3", "a.b4"):  # they are loaded first
        catalog.create_table(one, NUMBERS)
    catalog.load_table("a.other").append(pa.table({"id": [2]}))
    name = live(catalog, "a.other").rpartition("/")[2]
    catalog.then = _Then("a.b1", lambda: catalog.rename_table("a.other", "a.another"))
    if by == "orphans":
        assert find_needed_files(catalog, [name], target="a.target").names == {name}
    else:
        assert any(one.listed for one in other_tables(catalog, [name], target="a.target"))


@pytest.mark.parametrize("by", ["erasure", "orphans"])
def test_one_table_that_cannot_be_read_ends_the_look(catalog: Busy, by: str) -> None:
    names = [live(catalog).rpartition("/")[2]]
    for number in range(9):
        catalog.create_table(f"a.b{number}", NUMBERS).append(pa.table({"id": [number]}))
    torn = catalog.load_table("a.b3")
    (snapshot,) = torn.snapshots()
    torn.io.delete(snapshot.manifest_list)
    looks: dict[str, Callable[[], object]] = {
        "orphans": lambda: find_needed_files(catalog, names, target="a.target"),
        "erasure": lambda: list(other_tables(catalog, names, target="a.target")),
    }
    with pytest.raises(LakehouseError, match=r"manifests of a\.b3"):
        looks[by]()


def test_a_table_that_is_written_while_it_is_looked_at_was_not_set_back(catalog: Busy) -> None:
    catalog.then = _Then("a.target", lambda: catalog.load_table("a.target").append(pa.table({"id": [2]})))
    assert not was_set_back(catalog, ("a", "target"))


def test_a_table_that_never_rests_ends_the_looks(catalog: Busy) -> None:
    def write() -> None:
        catalog.load_table("a.target").append(pa.table({"id": [2]}))
        catalog.then = _Then("a.target", write)

    catalog.then = _Then("a.target", write)
    with pytest.raises(LakehouseError, match=r"a\.target was written during each of 5 looks"):
        was_set_back(catalog, ("a", "target"))


def test_a_table_whose_newer_metadata_the_catalog_does_not_know_was_set_back(catalog: Busy) -> None:
    before = catalog.load_table("a.target").metadata_location
    catalog.load_table("a.target").append(pa.table({"id": [2]}))
    catalog.drop_table("a.target")
    catalog.register_table("a.target", before)
    assert was_set_back(catalog, ("a", "target"))
    assert not was_set_back(catalog, ("a", "none"))
