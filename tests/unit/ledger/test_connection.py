"""The way into the ledger: what is said when it is wrong or away, without its password."""

from __future__ import annotations

import pytest

from sluice.errors import LedgerUnreachableError, SettingsError
from sluice.ledger.connection import database_time, open_ledger


def test_an_absent_ledger_is_one_sentence_without_its_password() -> None:
    with (
        open_ledger("postgresql+psycopg://sluice:planted-secret@127.0.0.1:1/sluice") as ledger,
        pytest.raises(LedgerUnreachableError) as absence,
    ):
        database_time(ledger)
    assert str(absence.value).startswith("The ledger at 127.0.0.1:1/sluice does not answer: ")
    assert "Connection refused" in str(absence.value)
    assert "planted-secret" not in str(absence.value)


@pytest.mark.parametrize("url", ["planted-secret", "sqlite:///planted-secret", "postgresql://u:planted-secret@h/d"])
def test_another_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingsError, match=r"Allowed is postgresql\+psycopg://") as refusal:
        open_ledger(url)
    assert "planted-secret" not in str(refusal.value)
