"""What proves that a request to act came from a page of ours."""

from __future__ import annotations

import time
from string import ascii_letters, digits

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from sluice_airflow.pages.page_guard import (
    PLAN_SECONDS,
    PlanTokens,
    ShownPlan,
    is_of_own_origin,
    require_readable,
    use_of,
)

HOST = {"host": "airflow.example:8080"}
PLAN = ShownPlan(user="ann", subject="clicks", verb="reset", number=3, digest="of the plan")


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({}, False),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://airflow.example:8080"}, True),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://airflow.example:8080.evil.example"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://evil.example"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://airflow.example:8080"}, False),
        ({"sec-fetch-site": "same-site", "origin": "http://airflow.example:8080"}, False),
        ({"origin": "https://airflow.company.example", "x-forwarded-host": "airflow.company.example"}, True),
    ],
    ids=str,
)
def test_only_our_own_origin_may_act(headers: dict[str, str], is_ours: bool) -> None:
    assert is_of_own_origin(HOST | headers) is is_ours


def test_a_token_is_good_for_its_person_stream_and_verb() -> None:
    tokens = PlanTokens("secret")
    token = tokens.token_of(PLAN)

    assert tokens.plan_of(token, user="ann", subject="clicks", verb="reset") == PLAN
    assert tokens.plan_of(token, user="bob", subject="clicks", verb="reset") is None
    assert tokens.plan_of(token, user="ann", subject="orders", verb="reset") is None
    assert tokens.plan_of(token, user="ann", subject="clicks", verb="stop") is None
    assert PlanTokens("another secret").plan_of(token, user="ann", subject="clicks", verb="reset") is None
    assert tokens.plan_of(f"x{token}", user="ann", subject="clicks", verb="reset") is None
    assert tokens.plan_of("", user="ann", subject="clicks", verb="reset") is None


def test_a_token_in_another_spelling_is_the_same_use() -> None:
    tokens = PlanTokens("secret")
    token = tokens.token_of(PLAN)
    respelt = [f"{token}=", *(f"{token[:-1]}{last}" for last in f"{ascii_letters}{digits}-_")]
    accepted = [one for one in respelt if tokens.plan_of(one, user="ann", subject="clicks", verb="reset") == PLAN]
    assert len(accepted) > 1
    assert {use_of(one) for one in accepted} == {use_of(token)}
    assert use_of(tokens.token_of(PLAN)) != use_of(token)


def test_each_token_is_another_one() -> None:
    tokens = PlanTokens("secret")
    first, second = tokens.token_of(PLAN), tokens.token_of(PLAN)

    assert use_of(first) != use_of(second)
    assert use_of(first) == use_of(first)


def test_a_token_is_good_for_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = PlanTokens("secret")
    token = tokens.token_of(PLAN)
    later = time.time() + PLAN_SECONDS + 2
    monkeypatch.setattr(time, "time", lambda: later)

    assert tokens.plan_of(token, user="ann", subject="clicks", verb="reset") is None


@pytest.mark.parametrize(
    ("path", "query", "is_refused"),
    [
        ("/streams/a\0b", b"", True),
        ("/streams/a", b"start=%00", True),
        ("/streams/a", b"start=2013-01-05%2b00:00&x=%ff", False),
        ("/streams/%00", b"", False),  # a name that holds the characters %00
    ],
)
def test_an_address_with_nul_is_not_found(path: str, query: bytes, is_refused: bool) -> None:
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": []}
    try:
        require_readable(Request(scope))
        refused = None
    except HTTPException as error:
        refused = error.status_code

    assert refused == (404 if is_refused else None)
