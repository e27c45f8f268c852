"""Whatever the environment holds, a wrong setting is one sentence that repeats no value."""

from __future__ import annotations

import os

import pytest
from tests.fixtures.deployment import PLANTED_SECRET, planted_environment

from sluice.errors import SettingsError
from sluice.launching.spark_submit import connection_of
from sluice.ledger.connection import checked_url
from sluice.settings import load_settings

VALID = {
    "SLUICE_JARS": "/jars",
    "SLUICE_LOGS": "/logs",
    "SLUICE_REPORTS": "/reports",
    "SLUICE_LEDGER_URL": "postgresql+psycopg://u:p@h/d",
    "SLUICE_CHECKPOINTS": "s3a://x/y",
    "SLUICE_CATALOG__URI": "http://h",
    "SLUICE_CATALOG__WAREHOUSE": "w",
    "SLUICE_OBJECT_STORE__REGION": "x",
}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("SLUICE_CATALOG", "hunter2{", "SLUICE_CATALOG, or a variable that begins so, is not JSON"),
        ("SLUICE_CONNECTIONS", '{"a": {"password": "hunter2"', "SLUICE_CONNECTIONS, or a variable that begins so, is"),
        ("SLUICE_CONNECTIONS", "5", "SLUICE_CONNECTIONS: Input should be a valid dictionary"),
        ("SLUICE_CONNECTIONS__A", "[hunter2", "SLUICE_CONNECTIONS__A: Input should be a valid dictionary"),
        ("SLUICE_CONNECTIONS__A__KIND", "x", "does not match any of the expected tags"),
        ("SLUICE_OBJECT_STORE", "hunter2", "SLUICE_OBJECT_STORE, or a variable that begins so, is not JSON"),
        ("SLUICE_BATCHES_KEPT_DAYS", "many", "SLUICE_BATCHES_KEPT_DAYS: Input should be a valid integer"),
        ("SLUICE_EVENTS_KEPT_DAYS", "9" * 30, "SLUICE_EVENTS_KEPT_DAYS: Input should be less than or equal to 36500"),
        ("SLUICE_RUNS_KEPT_DAYS", "0", "SLUICE_RUNS_KEPT_DAYS: Input should be greater than 0"),
        ("SLUICE_CHECKPOINTS", "nowhere", "SLUICE_CHECKPOINTS: String should match pattern"),
    ],
)
def test_a_wrong_variable_is_a_sentence(monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str) -> None:
    for set_name in [one for one in os.environ if one.startswith("SLUICE_")]:
        monkeypatch.delenv(set_name)
    for valid_name, valid_value in VALID.items():
        monkeypatch.setenv(valid_name, valid_value)
    load_settings()
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    assert sentence in str(refusal.value)
    assert "hunter2" not in f"{refusal.value!r} {refusal.value} {refusal.value.__cause__}"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("://hunter2", "SLUICE_LEDGER_URL is not a URL"),
        ("postgresql+psycopg://u:hunter2@h:port/d", "SLUICE_LEDGER_URL is not a URL"),
        ("mysql://u:hunter2@h/d", "SLUICE_LEDGER_URL names the driver mysql"),
        ("postgresql+psycopg://u:a@hunter2@h/d", "more than one `@`"),
        ("postgresql+psycopg://u:hunter2@h/d?colour=green", "an option after `?` that PostgreSQL's client does not"),
    ],
)
def test_a_wrong_address_of_the_ledger_is_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        checked_url(url)
    assert sentence in str(refusal.value)
    assert "user:password@host" in str(refusal.value), "a form is no secret"
    assert "hunter2" not in f"{refusal.value!r}{refusal.value}"


@pytest.mark.parametrize("url", ["postgresql+psycopg://u:p%40ss@h/d", "postgresql+psycopg://u@h/d?sslmode=require"])
def test_odd_addresses_are_valid(url: str) -> None:
    assert checked_url(url).host == "h"


@pytest.mark.parametrize("written", ["", "x{", "[1]", "5", "null", '{"extra": "{"}', '{"host": "a", "extra": [1]}'])
def test_a_wrong_spark_connection_is_a_sentence(written: str) -> None:
    with pytest.raises(SettingsError, match=r"AIRFLOW_CONN_SPARK_DEFAULT is not a Spark connection"):
        connection_of(written, variable="AIRFLOW_CONN_SPARK_DEFAULT")


def test_every_secret_is_known_to_what_masks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in os.environ if one.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    for name, value in (VALID | planted_environment()).items():
        monkeypatch.setenv(name, value)
    planted = {value for name, value in planted_environment().items() if PLANTED_SECRET in value and "SLUICE" in name}
    assert set(load_settings().secret_values()) == planted | {VALID["SLUICE_LEDGER_URL"]}
