"""Reads the manifests of a table, several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyiceberg.manifest import ManifestFile

READERS = 8
"""How many manifests are read in parallel: enough to hide an object store's latency, few for a small machine."""

Found = TypeVar("Found")


def each_manifest(read: Callable[[ManifestFile], Found], manifests: Sequence[ManifestFile]) -> Iterator[Found]:
    """What is read of each manifest, in their order."""
    if len(manifests) <= 1:  # threads would cost more than they hide
        yield from map(read, manifests)
        return
    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(read, manifests)
