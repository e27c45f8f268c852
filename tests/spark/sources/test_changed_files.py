"""A file that is written again after it was read: it is named, and it is not deleted unread."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.drill import first_of
from tests.fixtures.workshop import Workshop

from sluice.errors import InputReplacedError
from sluice.settings import FilesConnection
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.source_watch import has_nothing_to_do, observe_increment

COLUMNS = {"id": "long", "amount": "double"}


class Landing:
    """A folder of uploads, and the stream that appends their lines."""

    def __init__(self, workshop: Workshop, place: Path, **source: Any) -> None:
        self.folder, self.stream = place / "in" / "latest", f"s{workshop.namespace}"
        self.folder.mkdir(parents=True)
        here = FilesConnection(kind="files", root=self.folder.parent.as_uri())
        settings = workshop.settings.model_copy(update={"connections": {**workshop.settings.connections, "here": here}})
        self.workshop = Workshop(
            spark=workshop.spark, settings=settings, ledger=workshop.ledger, namespace=workshop.namespace
        )
        columns = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
        declared = {"connection": "here", "path": "latest", "format": "json", "columns": columns} | source
        self.target = workshop.declare_table("latest", COLUMNS)
        workshop.declare_stream(
            self.stream,
            sql="SELECT id, amount FROM f",
            inputs={"f": {"stream": {"files": declared}}},
            outputs={"main": {"iceberg": {"table": self.target}}},
        )
        self._uploads = 0

    def upload(self, name: str, *ids: int) -> None:
        """Write a file, a minute after the one before."""
        file = self.folder / name
        file.write_text("".join(f"{json.dumps({'id': number, 'amount': float(number)})}\n" for number in ids))
        self._uploads += 1
        at = 1_700_000_000 + 60 * self._uploads
        os.utime(file, (at, at))
        (self.folder / f".{name}.crc").unlink(missing_ok=True)

    def run(self) -> None:
        """Run the stream with all that its driver has, so that the ledger has its batches."""
        self.workshop.run_supervised(self.stream)

    def is_empty(self) -> bool:
        """Whether an increment would find nothing to do."""
        heads, stream = SourceHeads(self.workshop.settings), self.workshop.stream(self.stream)
        return has_nothing_to_do(observe_increment(self.workshop.ledger, heads, stream))

    def ids(self) -> list[int]:
        """The ids in the target."""
        return [row["id"] for row in self.workshop.rows(self.target)]

    def files(self) -> list[str]:
        """The files in the folder."""
        return sorted(file.name for file in self.folder.iterdir() if not file.name.startswith("."))


@pytest.mark.full  # every run: one beside files that are put away
def test_a_second_upload_under_the_same_name_is_named(workshop: Workshop, tmp_path: Path) -> None:
    landing = Landing(workshop, tmp_path)
    landing.upload("latest_sales.json", 1)
    landing.run()
    assert landing.is_empty()
    landing.upload("latest_sales.json", 3, 4)

    assert not landing.is_empty(), "a run has to report it"
    with pytest.raises(InputReplacedError, match=r"1 file was written again after being read.*latest_sales\.json"):
        landing.run()
    assert landing.ids() == [1]

    landing.upload("second_sales.json", 3, 4)
    (landing.folder / "latest_sales.json").unlink()
    landing.run()
    assert landing.ids() == [1, 3, 4]


@pytest.mark.full  # every run: beside files that are put away
def test_a_change_may_be_ignored(workshop: Workshop, tmp_path: Path) -> None:
    landing = Landing(workshop, tmp_path, on_changed="ignore")
    landing.upload("a.json", 1)
    landing.run()
    landing.upload("a.json", 2)
    landing.upload("b.json", 3)
    landing.run()
    assert landing.ids() == [1, 3]


@pytest.mark.parametrize(
    "afterwards", first_of({"afterwards": "archive", "archive_path": "old"}, {"afterwards": "delete"})
)
def test_only_what_was_read_is_put_away(workshop: Workshop, tmp_path: Path, afterwards: dict[str, str]) -> None:
    landing = Landing(workshop, tmp_path, on_changed="ignore", **afterwards)
    landing.upload("latest_sales.json", 1)
    landing.upload("plain.json", 2)
    landing.run()
    landing.upload("latest_sales.json", 3, 4)
    landing.upload("other.json", 5)
    landing.run()

    assert landing.ids() == [1, 2, 5]
    assert landing.files() == ["latest_sales.json", "other.json"]
    assert (landing.folder / "latest_sales.json").read_text().count("\n") == 2
    archived = [file.name for file in (tmp_path / "in" / "old").rglob("*.json")]
    assert archived == (["plain.json"] if "archive_path" in afterwards else [])


@pytest.mark.full  # every run: files that are put into an archive
def test_a_file_of_the_archive_is_never_replaced(
    workshop: Workshop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    landing = Landing(workshop, tmp_path, afterwards="archive", archive_path="old")
    landing.upload("plain.json", 1)
    landing.run()
    kept = tmp_path / "in" / "old" / str(landing.folder / "plain.json").lstrip("/")
    kept.parent.mkdir(parents=True)
    kept.write_text("an earlier one")
    landing.upload("other.json", 2)
    landing.run()

    assert landing.ids() == [1, 2]
    assert landing.files() == ["other.json", "plain.json"]
    assert kept.read_text() == "an earlier one"
    assert "plain.json was read and stays" in caplog.text


@pytest.mark.parametrize("afterwards", ["delete", pytest.param("archive", marks=pytest.mark.full)])
def test_what_was_uploaded_again_stops_the_stream_before_anything_is_put_away(
    workshop: Workshop, tmp_path: Path, afterwards: str
) -> None:
    archive = {"archive_path": "old"} if afterwards == "archive" else {}
    landing = Landing(workshop, tmp_path, afterwards=afterwards, **archive)
    landing.upload("latest_sales.json", 1)
    landing.upload("plain.json", 2)
    landing.run()
    landing.upload("latest_sales.json", 3, 4)
    landing.upload("other.json", 5)

    with pytest.raises(InputReplacedError, match=r"latest_sales\.json"):
        landing.run()
    assert landing.ids() == [1, 2]
    assert landing.files() == ["latest_sales.json", "other.json", "plain.json"]

    (landing.folder / "latest_sales.json").rename(landing.folder / "second_sales.json")
    (landing.folder / ".latest_sales.json.crc").unlink(missing_ok=True)
    landing.run()
    landing.upload("last.json", 6)
    landing.run()

    assert landing.ids() == [1, 2, 3, 4, 5, 6]
    assert landing.files() == ["last.json"]
    archived = sorted(file.name for file in (tmp_path / "in" / "old").rglob("*.json"))
    assert archived == (["other.json", "plain.json", "second_sales.json"] if archive else [])
