"""What the readers of a table hold back: old snapshots that only their positions keep, and what that costs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sluice.maintenance.pin_plan import Pin, PinKind
from sluice.messages.durations import in_words
from sluice.tables.table_observation import TableObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderCost:
    """What one stream holds back beyond the expiry policy of a table.

    snapshots: those that would expire without it.
    replaced_bytes: of files that later snapshots have replaced or removed; they take up space until the snapshots
        expire.
    age: of the oldest of these snapshots.
    """

    stream: str
    endpoint: str
    snapshots: int
    replaced_bytes: int
    age: timedelta

    def __str__(self) -> str:
        return (
            f"stream {self.stream} ({self.endpoint}) holds back {self.snapshots} old snapshots and "
            f"{self.replaced_bytes / 1024**2:,.1f} MiB of replaced files; the oldest is {in_words(self.age)} old"
        )


def reader_costs(
    seen: TableObservation, pins: tuple[Pin, ...], *, cutoff: datetime, retain_last: int
) -> tuple[ReaderCost, ...]:
    """What each pin holds back, the most snapshots first; none for a reader that holds back nothing.

    Parameters
    ----------
    cutoff, retain_last: of the table's expiry policy: what is newer, or among the last ones, would stay anyway.
    """
    found = sorted(_costs(seen, pins, cutoff, retain_last), key=lambda cost: (-cost.snapshots, cost.stream))
    return tuple(found)


def _costs(seen: TableObservation, pins: tuple[Pin, ...], cutoff: datetime, retain_last: int) -> Iterator[ReaderCost]:
    line = seen.main_line
    depths = {snapshot.snapshot_id: number for number, snapshot in enumerate(line)}
    for pin in pins:
        if pin.kind in (PinKind.NAMED, PinKind.AS_OF):
            continue  # it keeps one snapshot and holds no later one back
        depth = depths.get(pin.snapshot_id)
        if depth is None:
            continue
        held = [one for one in line[retain_last : depth + 1] if one.committed_at < cutoff]
        if held:
            yield ReaderCost(
                stream=pin.stream,
                endpoint=pin.endpoint,
                snapshots=len(held),
                replaced_bytes=sum(one.removed_bytes for one in line[:depth]),
                age=seen.observed_at - min(one.committed_at for one in held),
            )
