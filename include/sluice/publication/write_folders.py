"""The folders into which Sluice writes data files: one for each writer, so that what a dead one left is known.

    <data folder>/sluice_writes_<uuid of the table>/<kind>_<identity>/…
    <metadata folder>/<24 digits of the identity, 8 others>-m0.avro, snap-…-<the same>.avro

Engines give data files names of their own choice, so a name says nothing of who wrote it. A folder does: no other
program writes there, and its name is that of a writer that the ledger knows. A file is published where it lies, so the
live files of a table lie in these folders too. Manifests have no folders, so those of some writers are known by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID, uuid4

from pyiceberg.table.metadata import TableMetadata

from sluice.stored_keys import WRITES_FOLDER_PREFIX


class WriterKind(StrEnum):
    """What writes.

    RUN: a run of a stream, by its fencing token. ATTEMPT: an attempt at a backfill or a replay. REFRESH: a refresh,
    by its label. REWRITE: a compaction without Spark.
    """

    RUN = "run"
    ATTEMPT = "attempt"
    REFRESH = "refresh"
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One writer. identity: by which the ledger knows it; it is never given twice."""

    kind: WriterKind
    identity: str

    @classmethod
    def of_run(cls, token: int) -> Writer:
        """A run of a stream, by its fencing token."""
        return cls(kind=WriterKind.RUN, identity=str(token))

    @classmethod
    def of_attempt(cls, key: str) -> Writer:
        """An attempt at a backfill or a replay, by its publication key `<stream>/<lane>/<what>/<identity>…`."""
        return cls(kind=WriterKind.ATTEMPT, identity=key.split("/")[3])

    def __str__(self) -> str:
        return f"{self.kind}_{self.identity}"


_WRITER = re.compile(rf"({'|'.join(WriterKind)})_([0-9a-zA-Z_-]+)/.+")


def data_folder(target: TableMetadata) -> str:
    """Where engines put the data files of a table.

    Source: https://iceberg.apache.org/docs/latest/configuration/#write-properties
    """
    properties = target.properties
    named = properties.get("write.data.path")
    if named is None and properties.get("write.object-storage.enabled", "false").lower() == "true":
        named = properties.get("write.object-storage.path")
    return (named or properties.get("write.folder-storage.path") or f"{target.location}/data").rstrip("/")


def writes_folder(target: TableMetadata) -> str:
    """Where all writers of Sluice put data files for a table; another table in the same place has another folder."""
    return f"{data_folder(target)}/{WRITES_FOLDER_PREFIX}{target.table_uuid}"


def folder_of(target: TableMetadata, writer: Writer) -> str:
    """Where one writer puts data files for a table."""
    return f"{writes_folder(target)}/{writer}"


def writer_of(place: str) -> Writer | None:
    """Who wrote a file; none when its folder is not one of a writer.

    Parameters
    ----------
    place: of the file, below `writes_folder`.
    """
    found = _WRITER.fullmatch(place)
    return None if found is None else Writer(kind=WriterKind(found[1]), identity=found[2])


_KNOWN_DIGITS = 24
_OF_COMMIT = re.compile(r"(?:snap-\d+-\d+-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-m\d+)?\.avro")


def commit_id(identity: str) -> UUID:
    """An id for one try at a commit, after which its manifests are named. Each try has another one: what became of the
    one before may be unknown, and its manifests needed.

    Parameters
    ----------
    identity: of the writer, 32 hexadecimal digits.
    """
    return UUID(hex=identity[:_KNOWN_DIGITS] + uuid4().hex[_KNOWN_DIGITS:])


def is_of_commit(name: str, identities: Collection[str]) -> bool:
    """Whether a file is a manifest, or a list of them, of a commit of some writers. name: without folders."""
    found, known = _OF_COMMIT.fullmatch(name), {one[:_KNOWN_DIGITS] for one in identities}
    return found is not None and found[1].replace("-", "")[:_KNOWN_DIGITS] in known
