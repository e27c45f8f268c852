"""Files that are written over others in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from sluice.errors import LakehouseError
from sluice.tables.stored_files import StoredFolder
from sluice.tables.whole_files import WholeWrites

LARGE = b"-" * (11 << 20)
"""More than PyArrow sends in one part."""


class _BeginsNoUpload(BaseHTTPRequestHandler):
    written: list[str]

    def do_POST(self) -> None:
        """An upload in parts."""
        self._answer(400)

    def do_PUT(self) -> None:
        """A whole file."""
        self.written.append(self.path)
        self._answer(200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def begins_no_upload() -> Iterator[tuple[WholeWrites, list[str]]]:
    """Access to a store that takes whole files and begins no upload in parts, and the files that it took."""
    written: list[str] = []
    handler = type("Handler", (_BeginsNoUpload,), {"written": written})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        address = f"http://127.0.0.1:{server.server_port}"
        named = {"s3.endpoint": address, "s3.region": "x", "s3.access-key-id": "x", "s3.secret-access-key": "x"}
        yield WholeWrites(named), written
        server.shutdown()


def test_what_a_file_held_stays_when_its_new_content_is_refused(
    begins_no_upload: tuple[WholeWrites, list[str]],
) -> None:
    """The list of a trash is written over the one before. An empty one would say that nothing was moved."""
    access, written = begins_no_upload
    folder = StoredFolder.at(access, "s3://bucket/table/data")
    with pytest.raises(LakehouseError, match=r"Cannot write list\.parquet below s3://bucket/table/data"):
        folder.write("list.parquet", LARGE)
    assert written == []
