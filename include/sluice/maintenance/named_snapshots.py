"""The snapshots that static inputs name, by id or by a time: no expiry may remove them as long as they are declared.

An input that names a tag needs nothing here: Iceberg keeps what a tag is on. A time is found in the history of a table,
which ends where the first snapshot was expired. So the tag of a time holds it in its name, and the input is read from
there once the history has lost it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.maintenance.pin_plan import Pin, PinKind, as_of_label, is_tag_of
from sluice.tables.table_observation import ReferenceKind, TableObservation


def named_pins(declarations: Declarations, seen: TableObservation) -> tuple[Pin, ...]:
    """The pins of all static inputs that name a snapshot of a table. A snapshot that is gone already has none."""
    listed = {snapshot.snapshot_id for snapshot in seen.snapshots}
    found = (pin for loaded in declarations.streams.values() for pin in _pins(loaded.declaration, seen))
    return tuple(pin for pin in found if pin.snapshot_id in listed)


def _pins(stream: StreamDeclaration, seen: TableObservation) -> Iterator[Pin]:
    for name, declared in stream.inputs.items():
        source = declared.declared_source.source
        if declared.is_stream or not isinstance(source, IcebergSource) or source.table != seen.table:
            continue
        if source.snapshot_id is not None:
            yield Pin(kind=PinKind.NAMED, stream=stream.stream, endpoint=name, snapshot_id=source.snapshot_id)
        elif source.as_of is not None:
            snapshot_id = _snapshot_at(source.as_of, seen)
            if snapshot_id is not None:
                label = as_of_label(source.as_of)
                yield Pin(kind=PinKind.AS_OF, stream=stream.stream, endpoint=name, snapshot_id=snapshot_id, label=label)


def _snapshot_at(as_of: datetime, seen: TableObservation) -> int | None:
    """The snapshot that was current at a time: the newest of main up to then, or the one that a tag of that time keeps
    where main does not go back as far any more."""
    instant = as_of if as_of.tzinfo is not None else as_of.replace(tzinfo=UTC)
    on_main = (one.snapshot_id for one in seen.main_line if one.committed_at <= instant)
    tagged = (
        ref.snapshot_id for ref in seen.references if ref.kind is ReferenceKind.TAG and is_tag_of(ref.name, as_of)
    )
    return next(tagged, None) or next(on_main, None)
