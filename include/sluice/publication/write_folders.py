"""The folders into which Sluice writes data files: one for each writer, so that what a dead one left is known.

    <data folder>/sluice_writes_<uuid of the table>/<kind>_<identity>/…

Engines give data files names of their own choice, so a name says nothing of who wrote it. A folder does: no other
program writes there, and its name is that of a writer that the ledger knows. A file is published where it lies, so the
live files of a table lie in these folders too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

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
