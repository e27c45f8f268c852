"""The listing, the trash and the search for what is needed, on the object store and the catalog of the local stack."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.fixtures.publication import Workbench

from sluice.maintenance.needed_files import find_needed_files, whole_since
from sluice.maintenance.orphan_files import delete_removal, move_files, removal_of, removals_in, restore_files
from sluice.publication.data_files import Writer, data_folder, writer_of
from sluice.publication.file_preparation import write_files
from sluice.publication.publish_batches import live_files
from sluice.publication.staging_table import load_staging_table
from sluice.stored_keys import TRASH_FOLDER_PREFIX, WRITES_FOLDER_PREFIX
from sluice.tables.stored_files import StoredFolder

TRASH = f"{TRASH_FOLDER_PREFIX}x"


def test_a_leftover_is_found_moved_and_brought_back(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    staging = load_staging_table(bench.catalog, bench.output)
    rows = staging.scan().to_arrow()
    (left,) = write_files(staging.metadata, staging.io, rows)
    target = bench.target()
    folder = StoredFolder.at(target.io, data_folder(target.metadata))
    files = {file.name: file for file in folder.below()}
    ours = f"{WRITES_FOLDER_PREFIX}{target.metadata.table_uuid}/"
    assert {writer_of(file.place.removeprefix(ours)) for file in files.values()} == {Writer.of_run(bench.run)}

    needed = find_needed_files(bench.catalog, files, target=bench.output.target)
    (live,) = (file.file_path.rpartition("/")[2] for file in live_files(target))
    assert needed.names == {live}
    assert whole_since(needed.target.metadata) is not None

    (lost,) = (file for name, file in files.items() if name == left.file_path.rpartition("/")[2])
    removal = removal_of([lost], identity="r1", trash=TRASH, now=datetime.now(UTC))
    move_files(folder, removal)
    assert folder.size_of(lost.place) is None
    assert list(removals_in(folder, TRASH)) == [removal]
    assert restore_files(folder, [removal]) == 1
    assert folder.size_of(lost.place) == lost.size
    delete_removal(folder, removal)
    assert list(folder.below(TRASH)) == []
    assert bench.ids() == [0]
