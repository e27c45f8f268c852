"""A request to the HTTP API of a cluster: JSON in both directions, always with a timeout."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sluice.errors import ClusterError

if TYPE_CHECKING:
    import httpx

REQUEST_TIMEOUT_SECONDS = 10.0
"""The limit of each step of a request. The supervision of other streams waits meanwhile, and the state of an
application is unknown while its API is slower than this."""

_ERROR_CHARACTERS = 300


def request_json(
    method: str,
    url: str,
    *,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """Send a request, and return the JSON object of the response.

    Redirects are not followed: a standby ResourceManager redirects to the active one, and the caller knows both.

    Parameters
    ----------
    headers: additional headers; a token is sent here and stays out of every message.
    tls: which certificates are trusted; unset: those of the machine.

    Raises
    ------
    ClusterError: when there is no response, or it is an error or no JSON object; it knows the HTTP status.
    """
    import httpx  # takes longer to import than the rest of a command, which mostly has no cluster

    place = _place(url)
    verify = (tls or ssl.create_default_context()) if url.startswith("https:") else False
    sent = {"Accept": "application/json", **(headers or {})}
    try:
        response = httpx.request(
            method, url, json=body, headers=sent, timeout=timeout_seconds, verify=verify, follow_redirects=False
        )
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise ClusterError(f"{place} does not answer: {str(error) or type(error).__name__}.") from error
    if not response.is_success:
        problem = response.text[:_ERROR_CHARACTERS].strip() or response.reason_phrase
        raise ClusterError(f"{place} answers {response.status_code}: {problem}", status=response.status_code)
    return _json_object(response, place)


def _json_object(response: httpx.Response, place: str) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError as error:
        raise ClusterError(f"The response of {place} is not JSON.") from error
    if not isinstance(answer, dict):
        raise ClusterError(f"The response of {place} is not a JSON object.")
    return answer


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port}{parts.path}" if parts.port else f"{parts.hostname}"
