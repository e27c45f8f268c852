"""The promises that a declaration weakens, for the output of `sluice validate` and the log of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sluice.declarations.error_messages import key_text
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.yaml_document import KeyPath
from sluice.messages.location import Location

DIRECT_PROMISE = (
    "Iceberg's own sink shows each batch once as long as main's history keeps the snapshot of its newest batch, and "
    "as long as no driver that was suspended within a commit comes back beside its successor"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakerPromise:
    """A key that gives something up, and what is promised instead."""

    location: Location
    sentence: str

    def __str__(self) -> str:
        return f"{self.location}: {self.sentence}"


def weaker_promises(streams: Iterable[LoadedStream]) -> Iterator[WeakerPromise]:
    """The weaker promises of valid streams, in the order of the streams."""
    for stream in streams:
        output = stream.declaration.direct_output
        if output is not None:
            path: KeyPath = ("outputs", output, "iceberg", "delivery")
            yield WeakerPromise(
                location=stream.location(path),
                sentence=f"`{key_text(path)}`: direct promises less than staged: {DIRECT_PROMISE}.",
            )
