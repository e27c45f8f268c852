"""Checks that the state of a stateful stream is complete at its newest commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sluice.checkpoints.checkpoint_layout import (
    CheckpointContents,
    StateFile,
    checksum_path,
    needed_state_files,
    state_stores,
)
from sluice.ledger.checkpoint_checks import CheckpointFinding, CheckpointProperty

SHOWN = 3
"""How many damaged stores a message lists; they are usually damaged together."""


def judge_state(seen: CheckpointContents, *, committed_batch: int | None) -> CheckpointFinding:
    """Check that every store has all files that a start after `committed_batch` loads, each in its full size.

    A start after batch N loads state version N + 1: the newest full state up to it and all later changes.
    """
    stores = state_stores(seen.files)
    if committed_batch is None or not stores:
        return CheckpointFinding(name=CheckpointProperty.STATE_COMPLETE, healthy=True, message="no state is kept yet")
    version = committed_batch + 1
    problems = _missing_partitions(stores)
    for folder, store in stores.items():
        problems += [f"{folder}: {problem}" for problem in _problems_of(store, version, seen.texts)]
    message = f"{len(stores)} stores are whole at version {version}"
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        message = f"{'; '.join(problems[:SHOWN])}{more}"
    return CheckpointFinding(name=CheckpointProperty.STATE_COMPLETE, healthy=not problems, message=message)


def _missing_partitions(stores: Mapping[str, object]) -> list[str]:
    """Partitions are numbered from 0 without a gap, so every missing folder but the last one is noticed."""
    partitions: dict[str, set[int]] = {}
    for folder in stores:
        _, operator, partition, *_ = folder.split("/")
        if partition.isdecimal():
            partitions.setdefault(operator, set()).add(int(partition))
    return [
        f"state/{operator}/{missing}: the folder is gone or empty"
        for operator, numbers in partitions.items()
        for missing in sorted(set(range(max(numbers))) - numbers)
    ]


def _problems_of(store: Sequence[StateFile], version: int, texts: Mapping[str, str]) -> list[str]:
    needed = needed_state_files(store, version)
    first = min((found.version for found in needed), default=version)
    missing = sorted(set(range(first if _has_base(needed) else 1, version + 1)) - {found.version for found in needed})
    problems = [f"version {number} is missing" for number in missing]
    for found in needed:
        whole = _recorded_bytes(texts.get(checksum_path(found.file.path)))
        if whole is not None and whole != found.file.size_bytes:
            name = found.file.path.rpartition("/")[2]
            problems.append(f"{name} has {found.file.size_bytes} bytes of {whole}")
    return problems


def _has_base(needed: Sequence[StateFile]) -> bool:
    return any(found.is_full for found in needed)


def _recorded_bytes(checksum: str | None) -> int | None:
    """The size that Spark 4.1 recorded beside a state file; unset when there is no such record."""
    if checksum is None:
        return None
    try:
        size = json.loads(checksum).get("mainFileSize")
    except (ValueError, AttributeError):  # another kind of sidecar, without a size
        return None
    return size if isinstance(size, int) else None
