"""Pages asked with parameters that no page links to: none is an error of the server, and none costs much.

Every run asks for what is not there (`test_page_access.py`) and for addresses that no browser sends
(`test_page_guard.py`).
"""

from __future__ import annotations

import random
from urllib.parse import quote, urlencode

import httpx
import psutil
import pytest
from tests.fixtures.airflow import RunningAirflow

ODD = (
    "",
    " ",
    "\0",
    "%00",
    "..",
    "../../etc/passwd",
    "a/../b",
    "\u202e",
    "é",
    "<script>",
    "'--",
    "9" * 400,
    "-1",
    "NaN",
)
TIMES = (
    *("0001-01-01", "9999-12-31", "0001-01-01T00:00+14:00", "9999-12-31T23:00-05:00", "2013-01-05", "2200-12-31T23:59"),
    *("2013-W01", "1970-01-01", "2013-13-01", "now", "\0", "2013-01-05T25:00"),
)
ADDRESSES = (
    *("streams", "lineage", "api/streams", "api/unhealthy", "tables", "quality", "streams/{}", "streams/{}/quarantine"),
    *("streams/{}/plan/{}", "streams/{}/backfill", "streams/{}/spark", "streams/{}/spark/proxy/{}/{}", "tables/{}"),
    *("tables/{}/quality", "tables/{}/plan/maintain", "tables/{}/reports/{}/{}", "static/{}"),
)


CPU_SECONDS = 0.2
"""What one request may cost: the one process that answers it also answers every running task of Airflow."""


def spent(airflow: RunningAirflow) -> float:
    """The seconds of a processor that the API server has used until now."""
    server = psutil.Process(airflow.components.processes["api-server"].pid)
    times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def cost_of(airflow: RunningAirflow, client: httpx.Client, address: str) -> float:
    """What a request costs, the least of a few: the server answers others meanwhile."""
    costs = []
    for _ in range(5):
        before = spent(airflow)
        client.get(address, timeout=60)
        costs.append(spent(airflow) - before)
        if costs[-1] <= CPU_SECONDS:
            break
    return min(costs)


@pytest.mark.full
def test_no_parameter_of_a_page_is_an_error_of_the_server_or_costs_much(
    as_admin: httpx.Client, airflow: RunningAirflow
) -> None:
    draw = random.Random(7)  # noqa: S311  # cases, no secrets
    names = (*ODD, "acted_on", "asked_back", "silver.flights")
    asked = [
        f"/sluice/{address.format(*(quote(draw.choice(names), safe='') for _ in range(3)))}?"
        + urlencode({key: draw.choice(ODD) for key in ("hours", "done", "sort", "desc", "show", "search", "tag")})
        for address in ADDRESSES
        for _ in range(4)
    ]
    asked += [
        f"/sluice/streams/asked_back/plan/backfill?{urlencode({'start': start, 'end': end})}"
        for start, end in ((draw.choice(TIMES), draw.choice(TIMES)) for _ in range(15))
    ]
    asked.append(f"/sluice/streams/asked_back/plan/backfill?{urlencode({'start': '0001-01-01', 'end': '9999-12-31'})}")

    wrong, dear = {}, {}
    for address in asked:
        answer = as_admin.get(address, timeout=60)
        if answer.status_code >= 500 and "The ledger does not answer" not in answer.text:
            wrong[address] = answer.status_code
        if (cost := cost_of(airflow, as_admin, address)) > CPU_SECONDS:
            dear[address] = cost

    assert wrong == {}
    assert dear == {}
