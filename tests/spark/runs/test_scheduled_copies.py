"""Copies of a checkpoint that are made while its query runs: each is a state in which a crash may leave it.

Every test run has what such a copy is of no use for without Spark (`test_lost_batch_inputs.py`), and a copy several
batches behind (`test_state_replay.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.faults.ways_out.cells import AFTER, BEFORE, planned, repaired, undamaged, witnesses
from tests.faults.ways_out.kinds import Kind, Subject
from tests.fixtures.drivers import await_condition
from tests.fixtures.workshop import Workshop

from sluice.checkpoints.checkpoint_copies import copies_location, list_copies
from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.ledger.generations import current_generation
from sluice.publication.crash_points import CrashPoint

_KINDS = [
    (Kind.W, "file"),
    *(pytest.param((kind, place), marks=pytest.mark.full) for kind, place in ((Kind.H, "s3a"), (Kind.G, "file"))),
]


def contents(files: CheckpointFiles) -> dict[str, bytes]:
    """Every file of a folder."""
    return {seen.path: files.read_bytes(seen.path) or b"" for seen in files.list_files()}


@pytest.mark.full
@pytest.mark.parametrize("of_stream", _KINDS)
def test_a_killed_stream_is_put_back_from_a_copy_that_was_made_within_a_batch(
    workshop: Workshop, of_stream: tuple[Kind, str]
) -> None:
    kind, place = of_stream
    if place == "s3a":
        bucket = f"s3a://landing/checkpoints/{workshop.namespace}"
        workshop = replace(workshop, settings=workshop.settings.model_copy(update={"checkpoints": bucket}))
    subject = Subject(workshop=workshop, kind=kind, state={"backup_every": "500 milliseconds"})
    subject.declare()
    subject.feed(BEFORE)
    root = current_generation(
        workshop.ledger, subject.stream, checkpoints_root=workshop.settings.checkpoints
    ).checkpoint
    checkpoint, copies = (
        open_checkpoint_files(folder, workshop.settings.object_store) for folder in (root, copies_location(root))
    )
    kept: dict[str, bytes] = {}
    passed: list[CrashPoint] = []

    def copy_within_the_third(point: CrashPoint) -> None:
        passed.append(point)
        if passed.count(CrashPoint.STAGED) == 3 and not kept:
            await_condition(lambda: any((one.committed, one.planned) == (1, 2) for one in list_copies(copies)))
            kept.update(contents(copies))

    subject.run(reached=copy_within_the_third)
    assert list_copies(copies)[0].committed > 2, "that of its stop"
    for files in (checkpoint, copies):
        for path in contents(files):
            files.remove(path)
    for path, content in kept.items():
        copies.write_bytes(path, content)
    before = subject.content()

    plan = planned(subject)

    assert plan.evidence["replays"][0] == 2, list(plan.sentences())
    assert list_copies(copies)[0].planned == 2
    repaired(subject, plan)
    assert witnesses(subject) == ()
    subject.run()
    assert subject.content() == before
    subject.feed(AFTER)
    subject.run()
    assert Counter(subject.content()) == Counter(undamaged(workshop, kind))
