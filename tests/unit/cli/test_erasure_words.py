"""What `sluice table erase` says while a person waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sluice.cli.erasure_verbs import _interruption_said, _show_wait


@pytest.mark.parametrize(("as_json", "said"), [(False, "the same command does the rest"), (True, "")])
def test_an_interruption_says_what_to_do(as_json: bool, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), _interruption_said(as_json=as_json):
        raise KeyboardInterrupt
    errors = capsys.readouterr().err
    assert said in errors
    assert bool(errors) is not as_json


def test_a_program_gets_no_words_about_a_wait(capsys: pytest.CaptureFixture[str]) -> None:
    none: Sequence[Any] = ()
    _show_wait(none, as_json=True)
    assert capsys.readouterr() == ("", "")
    _show_wait(none, as_json=False)
    assert "takes a while" in capsys.readouterr().err
