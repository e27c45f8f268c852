"""Older copies that the number of a batch does not show: of what a source remembers, and of a table before a reset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.ways_out import damages
from tests.faults.ways_out.cells import planned, witnesses
from tests.faults.ways_out.kinds import Kind, Subject
from tests.fixtures.workshop import Workshop

from sluice.errors import DivergedError
from sluice.settings import FilesConnection


def test_an_older_copy_of_what_a_source_of_files_remembers_is_not_written_on(
    workshop: Workshop, tmp_path: Path
) -> None:
    folder, name = tmp_path / "in", f"s{workshop.namespace}"
    folder.mkdir()
    here = FilesConnection(kind="files", root=folder.as_uri())
    connections = {**workshop.settings.connections, "here": here}
    files = replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))
    target = files.declare_table("target", {"id": "long"})
    source = {"connection": "here", "format": "text", "max_files_per_batch": 1}
    files.declare_stream(
        name,
        sql="SELECT CAST(value AS BIGINT) AS id FROM lines",
        inputs={"lines": {"stream": {"files": source}}},
        outputs={"main": {"iceberg": {"table": target}}},
    )
    subject = Subject(workshop=files, kind=Kind.I)
    (folder / "1.txt").write_text("1\n")
    files.run(name, is_recorded=True)
    with damages.older_copy_afterwards(subject):
        (folder / "2.txt").write_text("2\n")
        files.run(name, is_recorded=True)

    plan = planned(subject)

    assert witnesses(subject) == ("checkpoint behind",)
    assert plan.is_refused, "Spark's log of the files would start again behind the files that are read"
    assert "what was read of the input lines up to batch 1 stood in the checkpoint alone" in " ".join(plan.sentences())


@pytest.mark.full  # every run has it without Spark (`test_later_generations.py`)
def test_a_table_of_before_a_reset_is_no_table_of_before_the_first_batch(workshop: Workshop) -> None:
    subject = Subject(workshop=workshop, kind=Kind.I)
    subject.declare()
    subject.feed((0,))
    subject.run()
    with damages.set_back_afterwards(subject, subject.targets):
        subject.reset()
        subject.run()

    plan = planned(subject)
    subject.feed((1,))
    with pytest.raises(DivergedError, match="the ledger has batches of generation 2 in it up to 0"):
        subject.run()

    assert witnesses(subject) == ("mark diverged",)
    assert plan.is_refused
