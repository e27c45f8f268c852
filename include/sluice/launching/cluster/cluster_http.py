"""One question to the HTTP API of a cluster: JSON there, JSON back, and never without a bound in time."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from sluice.errors import ClusterError

ANSWERED_WITHIN_SECONDS = 10.0
"""Bounds each step of a question. The supervision of other streams waits meanwhile; an API that is this slow tells
nothing, and nothing is done on its silence."""

_LONGEST_TOLD = 300


class _NoRedirect(HTTPRedirectHandler):
    """A ResourceManager that stands by points at the active one; the caller knows both and asks the other itself."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Follow nothing, so that the answer counts as an error."""
        del req, fp, code, msg, headers, newurl


def ask_json(
    method: str,
    url: str,
    *,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    within_seconds: float = ANSWERED_WITHIN_SECONDS,
) -> dict[str, Any]:
    """Ask, and return the JSON object of the answer.

    Parameters
    ----------
    headers: further headers; a token travels here and stays out of every message.
    tls: which certificates are trusted; unset: the machine's own.

    Raises
    ------
    ClusterError: when there is no answer, it is a refusal, or no JSON object; it knows the HTTP status.
    """
    sent = {"Accept": "application/json", "Content-Type": "application/json", **(headers or {})}
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data=data, headers=sent, method=method)  # noqa: S310  # the address of the deployment
    opener = build_opener(_NoRedirect(), HTTPSHandler(context=tls))
    place = _place(url)
    try:
        with opener.open(request, timeout=within_seconds) as answer:
            told = json.load(answer)
    except HTTPError as error:
        with error:
            raise ClusterError(f"{place} answers {error.code}: {_told(error)}", status=error.code) from None
    except (OSError, HTTPException) as error:
        raise ClusterError(f"{place} does not answer: {error}.") from error
    except ValueError as error:
        raise ClusterError(f"{place} answers with something else than JSON.") from error
    if not isinstance(told, dict):
        raise ClusterError(f"{place} answers with something else than a JSON object.")
    return told


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port}{parts.path}" if parts.port else f"{parts.hostname}"


def _told(error: HTTPError) -> str:
    try:
        return error.read(_LONGEST_TOLD).decode(errors="replace").strip() or str(error.reason)
    except OSError:
        return str(error.reason)
