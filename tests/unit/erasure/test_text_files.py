"""What a file of texts says: what its reader sees, one text a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli import erasure_verbs
from sluice.erasure.row_test import texts_of
from sluice.errors import UsageError


def test_marks_of_editors_and_empty_lines_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes("\ufeffann@x.org\r\n\r\nZo\u00eb Young\n".encode())
    assert erasure_verbs._lines(file) == ["ann@x.org", "Zo\u00eb Young"]
    assert erasure_verbs._lines(None) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"ann@x.org \n", "cannot be seen"),
        ("ann\u2028@x.org".encode(), "cannot be seen"),
        (b"", "has no text"),
        (b"\n \n", "has no text"),
        (b"\xff\xfea\x00", "cannot be read"),
    ],
)
def test_a_text_that_would_find_nothing_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        texts_of(erasure_verbs._lines(file))
