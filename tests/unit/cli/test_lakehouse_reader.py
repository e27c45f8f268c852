"""Whose settings `sluice sql` exchanges for those of the identity that only reads."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.fixtures.sample_settings import sample_settings

from sluice.cli.lakehouse_reader import as_reader
from sluice.settings import ObjectStoreSettings, Settings
from sluice.stack.credentials import Credentials, generate_credentials


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """Those of the local stack."""
    made = generate_credentials()
    (tmp_path / "credentials.json").write_text(json.dumps(asdict(made)))
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path))
    return made


def settings_of(credentials: Credentials, folder: Path) -> Settings:
    """The settings of a deployment with these keys."""
    store = ObjectStoreSettings(
        access_key_id=SecretStr(credentials.access_key_id), secret_access_key=SecretStr(credentials.secret_access_key)
    )
    return sample_settings(folder).model_copy(update={"object_store": store})


def test_the_local_stack_is_read_by_its_reader(credentials: Credentials, tmp_path: Path) -> None:
    settings = as_reader(settings_of(credentials, tmp_path))

    reader_id, secret = credentials.reader
    assert settings.object_store.access_key_id == SecretStr(reader_id)
    assert settings.object_store.secret_access_key == SecretStr(secret)
    assert settings.catalog.credential == SecretStr(f"{reader_id}:{secret}")
    assert credentials.secret_access_key not in secret


def test_another_deployment_keeps_its_keys(credentials: Credentials, tmp_path: Path) -> None:
    elsewhere = settings_of(replace(credentials, access_key_id="other"), tmp_path)

    assert as_reader(elsewhere) is elsewhere
    assert as_reader(sample_settings(tmp_path)).object_store.access_key_id is None


def test_another_stack_has_another_reader(credentials: Credentials) -> None:
    assert credentials.reader[1] != replace(generate_credentials(), access_key_id=credentials.access_key_id).reader[1]
