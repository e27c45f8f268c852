"""Finds the streams that follow the backfills of another one: they read its table, and their intervals come next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from sluice.backfill.intervals import Interval, rounded_outwards
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.source_declarations import IcebergSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A stream whose interval is computed again after that of a stream whose table it reads."""

    stream: LoadedStream
    interval: Interval


def followers_of(declarations: Declarations, stream: LoadedStream, interval: Interval) -> tuple[Follower, ...]:
    """The streams that follow a backfill of an interval, each after the one that it follows.

    The interval of a follower is that of the source and its own margin before and after it, in whole parts of its own
    length: rows of the source in the interval count for no other.
    """
    found: dict[str, Follower] = {}
    _add_followers(declarations, stream, interval, found)
    return tuple(found.values())


def declarations_digest(declarations: Declarations, stream: LoadedStream, interval: Interval) -> str:
    """SHA-256, in hexadecimal, of the declarations that compute an interval: of the stream and of those that follow it.

    It is the same for each part of an interval, so that each run of a backfill can be held to what a person agreed to.
    """
    computing = {stream.name: stream.digest}
    computing |= {one.stream.name: one.stream.digest for one in followers_of(declarations, stream, interval)}
    return sha256("".join(f"{name} {digest}\n" for name, digest in sorted(computing.items())).encode()).hexdigest()


def _add_followers(
    declarations: Declarations, stream: LoadedStream, interval: Interval, found: dict[str, Follower]
) -> None:
    for reader in _following_readers(declarations, stream):
        backfill = reader.declaration.backfill
        if backfill is None or reader.name == stream.name or reader.name in found:
            continue
        own = rounded_outwards(interval.widened(backfill.margin or timedelta(0)), backfill.interval)
        found[reader.name] = Follower(stream=reader, interval=own)
        _add_followers(declarations, reader, own, found)


def _following_readers(declarations: Declarations, stream: LoadedStream) -> Iterator[LoadedStream]:
    written = set(stream.declaration.tables_written)
    for _, reader in sorted(declarations.streams.items()):
        follows = reader.declaration.backfill.follows if reader.declaration.backfill is not None else ()
        for name in follows:
            declared = reader.declaration.inputs.get(name)
            source = declared.declared_source.source if declared is not None else None
            if isinstance(source, IcebergSource) and source.table in written:
                yield reader
