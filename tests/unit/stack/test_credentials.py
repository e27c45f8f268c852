"""Generating and keeping credentials."""

from __future__ import annotations

import json
import stat
from dataclasses import astuple, fields

import pytest

from sluice.errors import StackError
from sluice.stack.folder import Credentials, StackFolder, ensure_credentials, generate_credentials, read_credentials


def test_no_two_secrets_are_equal_and_none_is_short() -> None:
    values = [*astuple(generate_credentials()), *astuple(generate_credentials())]

    assert len(set(values)) == 2 * len(fields(Credentials))
    assert min(len(value) for value in values) >= 16


def test_a_secret_is_never_shown() -> None:
    credentials = generate_credentials()

    assert not any(value in f"{credentials} {credentials!r}" for value in astuple(credentials))


def test_credentials_are_generated_once_and_kept_private(folder: StackFolder) -> None:
    first = ensure_credentials(folder, is_new=True)

    assert ensure_credentials(folder, is_new=True) == first
    assert ensure_credentials(folder, is_new=False) == first
    assert stat.S_IMODE(folder.credentials.stat().st_mode) == 0o600


def test_lost_credentials_of_existing_data_are_not_replaced(folder: StackFolder) -> None:
    with pytest.raises(StackError, match="holds data that only its credentials open"):
        ensure_credentials(folder, is_new=False)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"postgres_password": "x"})])
def test_a_damaged_file_is_named(folder: StackFolder, text: str) -> None:
    folder.credentials.write_text(text)

    with pytest.raises(StackError, match=r"credentials.json is damaged"):
        read_credentials(folder.credentials)


def test_a_stack_that_was_never_started_has_none(folder: StackFolder) -> None:
    with pytest.raises(StackError, match=r"credentials.json does not exist. Start the stack"):
        read_credentials(folder.credentials)
