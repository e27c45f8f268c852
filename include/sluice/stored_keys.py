"""Every key that Sluice writes onto users' tables, snapshots and staging tables: what other programs must leave alone;
and the names under which refreshes run.

They are a stored format. A snapshot keeps the entries of its summary as long as it exists, so a key is never given
another meaning, and one that is no longer written is still read as long as snapshots with it may be there.
`docs/keys-and-locks.md` is the table of them for a person.
"""

from __future__ import annotations

import re

MARK_PROPERTY_PREFIX = "sluice.mark."
"""Properties of a table with this prefix are marks, `sluice.mark.<stream>.<output>`; only publication writes them."""

REPLAY_PROPERTY_PREFIX = "sluice.replay."
"""Properties of a table with this prefix are the newest replays from quarantines, `sluice.replay.<stream>.<output>`, as
JSON: the key, and whether its rows are visible."""

DECLARED_PROPERTIES = "sluice.declared-properties"
"""The property that lists the properties of the declaration, so that a removed one can be unset."""

KEPT_FOR_READERS = "sluice.kept-for-readers"
"""The property with the retention that was set for readers, as JSON: the value of each of Iceberg's properties."""

STAGING_TARGET = "sluice.staging.target"
"""The property of a staging table with the name of its target."""

STAGING_TARGET_UUID = "sluice.staging.target-uuid"
"""The property of a staging table with the UUID of its target: a dropped table's name may be used again."""

STAGING_CLEARED = "sluice.staging.cleared"
"""The property of a staging table that lists the snapshots of cleared batches that are not expired yet."""

STAGING_CLOSED_AT = "sluice.staging.closed-at"
"""The property of a staging table whose output is not declared any more: `<generation>:<batch>`, the newest batch that
was meant for it."""

OPERATION_COLUMN = "_sluice_operation"
"""The additional column of the staging table of a merge: `insert`, `update` or `delete`, null for a row without an
operation. It is staged so that a replay and a recovery know the operation of each row; no target has it."""

PUBLICATION_KEY = "sluice.publication-key"
"""The entry of a snapshot's summary that names what it made visible: the batch `<stream>:<generation>:<batch>`, or the
attempt of a backfill."""

STREAM = "sluice.stream"
"""The entry with the stream's name, of snapshots that have no publication key."""

OUTPUT = "sluice.output"
"""The entry with the name of the stream's output."""

GENERATION = "sluice.generation"
"""The entry with the generation, of a snapshot of Iceberg's own sink (`delivery: direct`)."""

RUN_ID = "sluice.run-id"
"""The entry with the run that staged the batch."""

TOKEN = "sluice.token"  # noqa: S105  # the fencing token is not a secret
"""The entry with the fencing token of the run that staged the batch or moved the mark."""

START_OFFSETS = "sluice.start-offsets"
"""The entry with the offsets after which the batch begins, by input, as JSON."""

END_OFFSETS = "sluice.end-offsets"
"""The entry with the offsets at which the batch ends, by input, as JSON."""

WATERMARK = "sluice.watermark"
"""The entry with the event-time watermark of the batch, where it has one."""

ROWS = "sluice.rows"
"""The entry with the number of rows of the output."""

RULES = "sluice.rules"
"""The entry with what the rules of the output found in the batch, as JSON."""

SEPARATED = "sluice.separated"
"""The entry `true` of a staged snapshot of a batch that was staged again: the rows that break the rules which held it
are in its quarantine, and no longer in its outputs."""

FIRST_BATCH = "sluice.first-batch"
"""In a publication of several batches: the number of the first one. The key names the last one."""

STAGED_MODE = "sluice.output-mode"
"""The entry of a staged snapshot with how the batch becomes visible, as it was declared then, as JSON."""

MARK_MOVE = "sluice.mark-move"
"""The entry with the reason why a mark moved without rows."""

MARK_POSITION = "sluice.mark-position"
"""The entry of such a snapshot with the generation and the batch of the mark, `<generation>:<batch>`."""

START_OF = "sluice.start-of"
"""The entry of an empty snapshot at which a stream begins to read: the stream, its generation and its input."""

REMOVED_BEFORE = "sluice.removed-before"
"""The entry of a snapshot that removed rows which a table keeps no longer, and the property of the table since: as
JSON, their column, the time before which it lies, and the age to which a person has agreed."""

ERASED = "sluice.erased"
"""The entry of a snapshot that erased rows of a person, and of the empty one behind it at which history is cut: the
identity of the erasure, as its event has it. Nothing of the rows is in it."""

PIN_PREFIX = "sluice_pin__"
"""Tags with this prefix keep what readers need. They belong to Sluice, which moves and removes them."""

REFRESH_TAG_PREFIX = "sluice_before_refresh_"
"""Tags with this prefix, and the number and identity of a refresh, keep the content of a table from before it."""

ADOPTION_TAG_PREFIX = "sluice_before_adoption_"
"""Tags with this prefix, and the id of a snapshot, keep for a week what main held before a rollback was taken back."""

WRITES_FOLDER_PREFIX = "sluice_writes_"
"""Folders of data files with this prefix, and the UUID of a table, hold what Sluice writes for it: a folder for each
writer, `sluice_writes_<uuid>/run_<token>`."""

TRASH_FOLDER_PREFIX = "_sluice_trash_"
"""Folders with this prefix, and the UUID of a table, hold the leftovers that were removed, until they are deleted. Of a
folder whose name begins so, Iceberg's `remove_orphan_files` takes nothing, and Spark reads nothing."""

DELTA_APPLICATION_PREFIX = "sluice/"
"""Delta tables know each stream's output as an application, `sluice/<stream>/<generation>/<output>`, whose version is
the number of the batch."""


def shadow_name(number: int, identity: str, stream: str) -> str:
    """The name under which a refresh runs its stream, of its tables and its checkpoint: no declared stream may have it.

    Parameters
    ----------
    identity: of the refresh. A ledger that was restored gives its numbers again, and tables and checkpoints of the name
        may be left.
    """
    return f"refresh_{number}_{identity}_of_{stream}"[:63].rstrip("_")  # the longest name of a stream


def is_shadow_name(name: str) -> bool:
    """Whether a name has the form of those under which refreshes run."""
    return re.fullmatch(r"refresh_[0-9]+_[0-9a-f]+_of_.*", name) is not None
