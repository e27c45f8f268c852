"""What happens to a stream that is stopped: files, tables and rows of the ledger that go, or are those of before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)
from sqlalchemy import text
from tests.faults.ways_out.kinds import COLUMNS, Subject

from sluice.checkpoints.checkpoint_copies import copies_location


def newest(folder: Path, log: str) -> Path:
    """The newest file of a log."""
    return folder / log / str(max(int(file.name) for file in (folder / log).iterdir() if file.name.isdigit()))


def newest_states(folder: Path) -> list[Path]:
    """The newest file of each state store, of a join's too, which has several in one folder."""
    newest: dict[Path, Path] = {}
    for file in folder.glob("state/*/*/**/*"):
        if file.is_file() and file.suffix in (".delta", ".changelog", ".zip", ".snapshot"):
            version = _version(newest[file.parent]) if file.parent in newest else -1
            newest[file.parent] = file if _version(file) > version else newest[file.parent]
    return [newest[store] for store in sorted(newest)]


def _version(file: Path) -> int:
    return int(file.name.partition(".")[0].partition("_")[0])


def unlink(file: Path) -> None:
    """Remove a file with its checksums."""
    for one in (file, file.with_name(f".{file.name}.crc"), file.with_name(f"{file.name}.crc")):
        one.unlink(missing_ok=True)


def flip(file: Path) -> None:
    """Flip a bit, as a bad disk does."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def truncate(file: Path) -> None:
    """Cut a file in two."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def of_log(log: str, damage: Callable[[Path], object]) -> Callable[[Subject], object]:
    """A damage to the newest entry of a log."""
    return lambda subject: damage(newest(subject.checkpoint, log))


def folder_gone(subject: Subject) -> None:
    """Somebody removes the checkpoint."""
    shutil.rmtree(subject.checkpoint)


def copies_gone_too(subject: Subject) -> None:
    """Somebody removes the checkpoint and its copies."""
    folder_gone(subject)
    shutil.rmtree(urlsplit(copies_location(subject.checkpoint.as_uri())).path)


@contextmanager
def killed_afterwards(subject: Subject) -> Iterator[None]:
    """As if the run within the block were killed before it stopped: no copy is made. Then the checkpoint is lost."""
    copies = Path(urlsplit(copies_location(subject.checkpoint.as_uri())).path)
    kept = copies.with_name("kept")
    shutil.copytree(copies, kept)
    yield
    shutil.rmtree(copies)
    kept.rename(copies)
    folder_gone(subject)


def logs_gone(subject: Subject) -> None:
    """The logs are gone, and what sources and state keep is there."""
    shutil.rmtree(subject.checkpoint / "offsets")
    shutil.rmtree(subject.checkpoint / "commits")


def metadata_gone(subject: Subject) -> None:
    """Only the id of the query is gone."""
    unlink(subject.checkpoint / "metadata")


def metadata_foreign(subject: Subject) -> None:
    """The id is that of another query."""
    unlink(subject.checkpoint / "metadata")
    (subject.checkpoint / "metadata").write_text(json.dumps({"id": "7c1e7a6e-0000-4000-8000-000000000000"}))


def states(damage: Callable[[Path], object]) -> Callable[[Subject], object]:
    """A damage to the newest file of one state store."""
    return lambda subject: damage(newest_states(subject.checkpoint)[0])


def store_gone(subject: Subject) -> None:
    """A whole state store is gone."""
    shutil.rmtree(newest_states(subject.checkpoint)[0].parent)


def last_partition_gone(subject: Subject) -> None:
    """The last partition of the state is gone."""
    shutil.rmtree(newest_states(subject.checkpoint)[-1].parent)


def state_gone(subject: Subject) -> None:
    """The whole state is gone."""
    shutil.rmtree(subject.checkpoint / "state")


def generation_forgotten(subject: Subject) -> None:
    """The ledger is that of an hour ago, when the newest generation was not open."""
    _forget(subject, "generation > 1")


def ledger_lost(subject: Subject) -> None:
    """The ledger knows nothing of the stream."""
    _forget(subject, "true")


def both_lost(subject: Subject) -> None:
    """Neither the ledger nor the checkpoint is there."""
    folder_gone(subject)
    ledger_lost(subject)


def _forget(subject: Subject, which: str) -> None:
    with subject.workshop.ledger.transaction() as connection:
        for table in ("batches", "generations"):
            statement = f"DELETE FROM {table} WHERE stream = :stream AND {which}"  # noqa: S608  # our own words
            connection.execute(text(statement), {"stream": subject.stream})


@contextmanager
def set_back_afterwards(subject: Subject, tables: tuple[str, ...]) -> Iterator[None]:
    """Set tables back, after the block, to what they were before it: the catalog's data of yesterday."""
    catalog = subject.workshop.catalog
    before = {name: catalog.load_table(name).metadata for name in tables}
    yield
    for name, then in before.items():
        table = catalog.load_table(name)
        listed = {one.snapshot_id for one in then.snapshots}
        main = then.refs[MAIN_BRANCH]
        newer = [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id not in listed]
        updates = (
            SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH,
                type="branch",
                snapshot_id=main.snapshot_id,
                max_ref_age_ms=None,
                max_snapshot_age_ms=None,
                min_snapshots_to_keep=None,
            ),
            RemoveSnapshotsUpdate(snapshot_ids=newer),
            RemovePropertiesUpdate(removals=sorted(table.properties.keys() - then.properties.keys())),
            SetPropertiesUpdate(updates=dict(then.properties)),
        )
        catalog.commit_table(table, (), updates)


def staging_lists_gone(subject: Subject) -> None:
    """Let staging tables refer to what clearing them has removed, as in a catalog that was set back to before it."""
    for name in subject.stagings:
        staging = subject.workshop.catalog.load_table(name)
        newest = staging.current_snapshot()
        assert newest is not None
        staging.io.delete(newest.manifest_list)


@contextmanager
def rolled_back_afterwards(subject: Subject) -> Iterator[None]:
    """Roll the tables back, after the block, to what they were before it. Nothing of them is removed."""
    catalog = subject.workshop.catalog
    before = {name: catalog.load_table(name).metadata.current_snapshot_id for name in subject.targets}
    yield
    for name, then in before.items():
        assert then is not None
        catalog.load_table(name).manage_snapshots().rollback_to_snapshot(then).commit()


def tables_created_again(subject: Subject) -> None:
    """Somebody drops the tables, and creates them again as they are declared."""
    for name in subject.targets:
        subject.workshop.catalog.drop_table(name)
        subject.workshop.declare_table(name.partition(".")[2], COLUMNS)


@contextmanager
def older_copy_afterwards(subject: Subject) -> Iterator[None]:
    """Put the checkpoint back, after the block, that was there before it."""
    kept = subject.checkpoint.with_name("kept")
    shutil.copytree(subject.checkpoint, kept)
    yield
    shutil.rmtree(subject.checkpoint)
    kept.rename(subject.checkpoint)
