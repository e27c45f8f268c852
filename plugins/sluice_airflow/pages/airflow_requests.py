"""Asks this Airflow to run something, by its own public API and as the person who asks.

The request does not leave the process: it goes to the application that serves the API, with the person's own
credentials. So Airflow decides whether they may, names them in the run and in its audit log, and the refusals of
`adapters.control_permission` apply as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

import anyio.from_thread
import httpx
from fastapi import HTTPException, Request

from sluice.pages.job_plans import AirflowRequest

AskAirflow = Callable[[Request, AirflowRequest], Mapping[str, Any]]

_CREDENTIALS = ("authorization", "cookie")


def ask_airflow(request: Request, asked: AirflowRequest) -> Mapping[str, Any]:
    """Send a request to the API. For routes that run in a thread, as all of the pages do.

    Raises
    ------
    HTTPException: when Airflow refuses, with its own status and sentence.
    """
    answer = anyio.from_thread.run(partial(_send, request.headers, asked))
    if answer.is_success:
        document: Mapping[str, Any] = answer.json()
        return document
    status = answer.status_code if answer.is_client_error else HTTPStatus.BAD_GATEWAY
    raise HTTPException(status, f"Airflow refuses it: {_sentence_of(answer)}")


async def _send(headers: Mapping[str, str], asked: AirflowRequest) -> httpx.Response:
    from airflow.api_fastapi.main import app  # the application that serves this very request

    credentials = {name: headers[name] for name in _CREDENTIALS if name in headers}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://airflow") as client:
        return await client.request(asked.method, f"/api/v2/{asked.path}", json=asked.body, headers=credentials)


def _sentence_of(answer: httpx.Response) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"it answers {answer.status_code}."
    return detail if isinstance(detail, str) else str(detail)
