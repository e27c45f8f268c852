"""A file that was written again, beside a folder that may not be entered."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.declarations.source_declarations import FilesSource
from sluice.errors import InputReplacedError
from sluice.settings import FilesConnection, ObjectStoreSettings
from sluice.sources.unread_input import require_unchanged_files


@pytest.mark.parametrize("is_closed_beside", [False, True])
def test_a_file_that_was_written_again_is_found_beside_a_closed_folder(
    tmp_path: Path, *, is_closed_beside: bool
) -> None:
    """Its new content is never read, and the run is green: that is no less so where another folder is closed."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "again.json").write_text("{}")
    os.utime(tmp_path / "in" / "again.json", (1_700_000_000, 1_700_000_000))
    if is_closed_beside:  # the tests may run as root, who may enter every folder but this
        (tmp_path / "in" / "lost+found").symlink_to("lost+found")
    root = (tmp_path / "in").as_uri()
    line = json.dumps({"path": f"{root}/again.json", "timestamp": 1_600_000_000_000, "batchId": 0})
    (tmp_path / "c" / "sources" / "0").mkdir(parents=True)
    (tmp_path / "c" / "sources" / "0" / "0").write_text(f"v1\n{line}")
    source = FilesSource.model_validate({"connection": "here", "format": "text"})
    given: Any = SimpleNamespace(is_stream=True, declared_source=SimpleNamespace(source=source))
    declaration: Any = SimpleNamespace(stream="s", inputs={"files": given})
    connection = FilesConnection(kind="files", root=root)
    settings: Any = SimpleNamespace(object_store=ObjectStoreSettings(), connection=lambda *_: connection)

    with pytest.raises(InputReplacedError):
        require_unchanged_files(declaration, settings, checkpoint=(tmp_path / "c").as_uri())
