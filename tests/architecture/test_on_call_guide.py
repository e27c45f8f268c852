"""The guide for the on-call says what the code does."""

from __future__ import annotations

from tests.architecture.on_call_guide import FILE, render


def test_the_guide_is_what_the_code_says() -> None:
    assert FILE.read_text() == render(), "write it again: python -m tests.architecture.on_call_guide"
