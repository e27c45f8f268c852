"""Who may open Spark's own UI of a stream. What it answers is tested with real drivers elsewhere."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest
from tests.fixtures.airflow import RunningAirflow

PROXY = "/sluice/streams/left_alone/spark/proxy/local-1"
ADDRESSES = (
    "/sluice/streams/left_alone/spark",
    f"{PROXY}/jobs/",
    f"{PROXY}/static/webui.js",
    f"{PROXY}/api/v1/version",
)


def client_of(airflow: RunningAirflow, user: str = "") -> httpx.Client:
    """A client with the cookie of a user; without a name one that is not logged in."""
    cookies = {"_token": airflow.token(user)} if user else {}
    return httpx.Client(base_url=airflow.client.base_url, cookies=cookies, timeout=30)


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_stranger_gets_no_answer_and_a_viewer_reads_why_there_is_no_ui(airflow: RunningAirflow, address: str) -> None:
    with client_of(airflow) as stranger, client_of(airflow, "viewer") as viewer:
        assert stranger.get(address).status_code == 401
        for method in ("POST", "PUT", "DELETE"):
            assert viewer.request(method, address).status_code == 405
        refused = viewer.get(address)

    assert refused.status_code == 409
    assert "No driver of left_alone runs now" in refused.text or "serves no UI, or not yet" in refused.text


@pytest.mark.filterwarnings("ignore:Using `httpx` with")
def test_who_may_not_read_the_dag_is_refused_before_anything_is_looked_up() -> None:
    from fastapi import HTTPException

    from sluice_airflow.pages import stream_routes
    from sluice_airflow.pages.page_access import Reader

    class Blind(Reader):
        """A person who may read no DAG."""

        def may_read(self, streams: object) -> frozenset[str]:
            """Nothing."""
            del streams
            return frozenset()

    blind, nothing = Blind(user=None, name="blind"), cast("Any", None)
    with pytest.raises(HTTPException) as raised:
        stream_routes._to_ui("left_alone", nothing, blind, nothing)
    assert raised.value.status_code == 403
    for path in ("jobs/", "static/webui.js"):
        with pytest.raises(HTTPException) as raised:
            stream_routes._ui_page("left_alone", "local-1", path, nothing, blind, nothing)
        assert raised.value.status_code == 403
