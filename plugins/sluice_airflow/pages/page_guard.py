"""What protects the pages in a browser: headers on every answer, and proof that a request to act came from a page.

A request that changes something must come from our own origin (`Sec-Fetch-Site`, and `Origin` where a browser does not
send that), and carry the token of the plan that the person was shown. Airflow's cookie alone is no proof: it is
`SameSite=Lax`, which leaves sibling domains.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex
from urllib.parse import unquote_to_bytes, urlsplit

from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

PLAN_SECONDS = 600
"""How long a plan that was shown can be confirmed; then it may be out of date and is shown again."""

_SALT = "sluice.pages.plan"

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""On every answer, also of an error. Nothing is loaded from elsewhere, and no script or style of a page's text runs."""

_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")
"""A name or an IPv4 address with a port, as a content security policy may name it."""

Next = Callable[[Request], Awaitable[Response]]


async def add_headers(request: Request, call_next: Next) -> Response:
    """Put the headers on an answer; what shows data is stored in no cache."""
    answer = await call_next(request)
    for name, value in {**HEADERS, "Cache-Control": "no-store"}.items():
        answer.headers.setdefault(name, value)
    return answer


def require_readable(request: Request) -> None:
    """Refuse an address with NUL: no name, path or time has it, and neither files nor the ledger take it.

    Raises
    ------
    HTTPException: 404.
    """
    if "\0" in request.scope["path"] or "\0" in unquote_to_bytes(request.url.query).decode(errors="replace"):
        raise HTTPException(404, "There is no such page: the address holds NUL.")


def spark_ui_policy(host: str, base: str) -> str:
    """What a page of the UI may do in a browser: run and load the files of Spark's own jars, read the UI, and no more.

    A page may contain whatever the user's code wrote into it, and it has the origin of Airflow's own pages: so no
    script of its text runs, and none from another address.

    Parameters
    ----------
    host: as the browser sees it; another form than a name with a port allows nothing to be loaded.
    base: the path of the UI.
    """
    is_known = _HOST.fullmatch(host) is not None
    own, files = (f"{host}{base}/", f"{host}{base}/static/") if is_known else ("'none'", "'none'")
    besides = files if is_known else ""  # `'none'` must stand alone
    return (
        f"default-src 'none'; script-src {files}; style-src {besides} 'unsafe-inline'; img-src {besides} data:; "
        f"font-src {files}; connect-src {own}; form-action {own}; base-uri 'none'; frame-ancestors 'self'; "
        "sandbox allow-scripts allow-same-origin allow-forms"
    )


def is_of_own_origin(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent this request from a page of our own origin.

    `Sec-Fetch-Site` is written by the browser and cannot be set by a page. A browser that does not send it sends
    `Origin` with every POST; a program sends neither, and is refused: it has the command line and Airflow's API.

    Source: https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is not None:
        hosts = {headers.get("host"), headers.get("x-forwarded-host")} - {None, ""}
        return urlsplit(origin).netloc in hosts
    return site == "same-origin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPlan:
    """A plan that a person was shown: only this person can confirm it, and only for this stream or table.

    number: of a rejection or a rewind, the batch; unset for the other verbs.
    interval: of a backfill, its start and end joined by `/`; empty for the other verbs.
    digest: of what was planned; empty for the button that unpauses a DAG.
    """

    user: str
    subject: str
    verb: str
    number: int | None = None
    interval: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class PlanTokens:
    """Tokens of plans that were shown. secret: of this Airflow, the same in all of its API servers."""

    secret: str

    def token_of(self, plan: ShownPlan) -> str:
        """The token that a confirmation carries; each is another one."""
        return str(self._serializer().dumps([token_hex(8), *(getattr(plan, name) for name in _FIELDS)]))

    def plan_of(self, token: str, *, user: str, subject: str, verb: str) -> ShownPlan | None:
        """The plan that is confirmed; none when this person was not shown it, or too long ago."""
        try:
            _, *values = self._serializer().loads(token, max_age=PLAN_SECONDS)
            shown = ShownPlan(**dict(zip(_FIELDS, values, strict=True)))
        except (BadData, ValueError, TypeError):
            return None
        return shown if (shown.user, shown.subject, shown.verb) == (user, subject, verb) else None

    def _serializer(self) -> URLSafeTimedSerializer:
        return URLSafeTimedSerializer(self.secret, salt=_SALT)


def use_of(token: str) -> str:
    """The id under which the ledger remembers that a token was used: without its signature, which Base64 spells in
    several ways."""
    return f"page:{sha256(token.rpartition('.')[0].encode()).hexdigest()}"


_FIELDS = ("user", "subject", "verb", "number", "interval", "digest")
