"""The way into the ledger: what is said when it is wrong or away, without its password."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy.exc
from sqlalchemy import make_url

from sluice.errors import LedgerUnreachableError, SettingsError
from sluice.ledger.connection import database_time, ledger_errors, open_ledger


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


@pytest.mark.parametrize("told", [sqlalchemy.exc.ProgrammingError, sqlalchemy.exc.OperationalError])
def test_a_ctrl_c_that_the_driver_hides_is_still_one(told: type[sqlalchemy.exc.DBAPIError]) -> None:
    with pytest.raises(KeyboardInterrupt), ledger_errors(make_url("postgresql+psycopg://u@127.0.0.1/l")):
        _ping_that_is_interrupted(told)


def _ping_that_is_interrupted(told: type[sqlalchemy.exc.DBAPIError]) -> None:
    """As it was seen: the clean-up of SQLAlchemy's ping failed on the connection that was left in a query."""
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise psycopg.ProgrammingError("can't change 'autocommit' now: transaction status ACTIVE")  # noqa: B904
    except psycopg.ProgrammingError as error:
        raise told("SELECT 1", None, error) from error


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        (
            sqlalchemy.exc.InternalError(
                "UPDATE",
                None,
                psycopg.errors.ReadOnlySqlTransaction("cannot execute UPDATE in a read-only transaction"),
            ),
            "takes no writes now: cannot execute UPDATE in a read-only transaction",
        ),
        (sqlalchemy.exc.TimeoutError("QueuePool limit of size 1 overflow 1 reached"), "became free in time"),
    ],
    ids=["a standby", "no free connection"],
)
def test_a_ledger_that_fails_over_or_hangs_is_unreachable(raised: Exception, sentence: str) -> None:
    with (
        pytest.raises(LedgerUnreachableError, match=sentence),
        ledger_errors(make_url("postgresql+psycopg://u@127.0.0.1/l")),
    ):
        raise raised


def test_a_defect_of_the_caller_keeps_its_own_error() -> None:
    defect = sqlalchemy.exc.ProgrammingError("SELECT", None, psycopg.ProgrammingError("syntax error"))
    with (
        pytest.raises(sqlalchemy.exc.ProgrammingError),
        ledger_errors(make_url("postgresql+psycopg://u@127.0.0.1/l")),
    ):
        raise defect
