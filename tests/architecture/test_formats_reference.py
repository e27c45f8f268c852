"""`docs/formats.md` says what the code decides about each value."""

from __future__ import annotations

from tests.architecture.formats_reference import FILE, render


def test_the_page_is_what_the_code_decides() -> None:
    assert FILE.read_text() == render(), "write it again: python -m tests.architecture.formats_reference"
