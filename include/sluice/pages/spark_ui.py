"""Spark's own UI of a driver, as a page reads it: where it is, and one bounded request to it.

The UI listens on loopback of the driver's host and answers requests whose token is signed with the run's key. What a
driver answers is the work of the user's code as well, so it counts as foreign: only texts and data pass, no scripts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import httpx
import psutil

from sluice.errors import DriverUiError
from sluice.launching.launch_settings import LOOPBACK
from sluice.ledger.connection import Ledger
from sluice.ledger.driver_access import DriverUi, find_driver_ui
from sluice.ledger.runs import newest_run
from sluice.processes.process_identity import ProcessIdentity, ProcessState

ANSWER_SECONDS = 10.0
"""How long a driver may take: it computes a page while it works, and a person waits for it."""

MOST_BYTES = 8_000_000
"""A page of a stage with thousands of tasks has about one million."""

_TOKEN_SECONDS = 60
_CONNECT_SECONDS = 2.0

SHOWN_TYPES = frozenset({"text/html", "text/plain", "application/json"})
"""What passes. Style sheets and scripts come from Spark's jar beside this process (`read_static_file`)."""

_FOLDERS = {
    "static/sql/": ("spark-sql_*.jar", "org/apache/spark/sql/execution/ui/static/"),
    "static/": ("spark-core_*.jar", "org/apache/spark/ui/static/"),
}
"""The jar and the folder in it for the beginning of an address, the longest first."""

_META = re.compile(rb"<meta\b", re.IGNORECASE)
"""An element by which a page of user code could lead to another address; the type is in the answer's header."""

FILE_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UiAnswer:
    """What a UI answered. redirect: the path to go to instead, below the UI's own; unset for a page."""

    status: int
    content_type: str
    body: bytes
    redirect: str | None = None


def listens_on(pid: int, port: int) -> bool:
    """Whether a process, or one that it has started, listens on a TCP port; false when this process may not see it."""
    try:
        top = psutil.Process(pid)
        processes = [top, *top.children(recursive=True)]
    except psutil.Error:
        return False
    return any(port in _ports_of(process) for process in processes)


def _ports_of(process: psutil.Process) -> frozenset[int]:
    try:
        sockets = process.net_connections(kind="tcp")
    except psutil.Error:
        return frozenset()
    return frozenset(one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN)


def find_ui(
    ledger: Ledger,
    stream: str,
    *,
    observe_process: Callable[[ProcessIdentity], ProcessState],
    listens: Callable[[int, int], bool] = listens_on,
) -> DriverUi:
    """Find the UI of the driver that runs a stream now.

    Parameters
    ----------
    observe_process: whether a driver of this host lives. listens: whether a process listens on a port: a driver writes
        the ledger itself, and must not point to another service of this host.

    Raises
    ------
    DriverUiError: when there is none, or it is on another host.
    """
    run = newest_run(ledger, stream)
    if run is None or not run.is_live or run.process is None:
        raise DriverUiError(f"No driver of {stream} runs now.", next_step="A history server shows earlier ones.")
    if run.process.application is not None:
        raise DriverUiError(
            f"The driver of {stream} runs on the cluster of the Spark connection {run.process.host}: its UI is not "
            "reachable from here.",
            next_step="Set SLUICE_EVENT_LOGS, and look at it in a history server: docs/guides/spark-ui.md.",
        )
    if observe_process(run.process) is not ProcessState.ALIVE:
        raise DriverUiError(
            f"The driver of {stream} runs on {run.process.host}: its UI listens there on loopback alone, and is not "
            "reachable from here.",
            next_step="Run Airflow's API server on that host and in its container, or use a history server.",
        )
    ui = find_driver_ui(ledger, stream)
    if ui is None or ui.run_id != run.run_id or not listens(run.process.pid, ui.port):
        raise DriverUiError(
            f"The driver of {stream} serves no UI, or not yet.",
            next_step="Declare `engine: {ui: true}`; a driver that starts takes some seconds.",
        )
    return ui


def read_ui(ui: DriverUi, path: str, *, query: str, base: str) -> UiAnswer:
    """Read one page of a UI.

    Parameters
    ----------
    path: below the UI's root, quoted, without a leading slash.
    query: the query of the address, quoted.
    base: the path below which the browser sees the UI; Spark's links begin with it.

    Raises
    ------
    DriverUiError: when it does not answer in time, or with more than `MOST_BYTES`.
    """
    headers = {
        "Authorization": f"Bearer {signed_token(ui.key, now_seconds=time.time())}",
        "X-Forwarded-Context": base,
        "Accept-Encoding": "identity",
    }
    address = f"http://{LOOPBACK}:{ui.port}/{path}" + (f"?{query}" if query else "")
    deadline = time.monotonic() + ANSWER_SECONDS
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=_CONNECT_SECONDS)
    try:
        with (
            httpx.Client(timeout=timeout, trust_env=False) as client,
            client.stream("GET", address, headers=headers) as answer,
        ):
            body = bounded(answer, deadline)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DriverUiError(
            f"Spark's UI does not answer: {type(error).__name__}.", next_step="The driver may be starting or ending."
        ) from error
    return _shown(answer.status_code, answer.headers, body, base=base)


def signed_token(key: str, *, now_seconds: float) -> str:
    """A JSON Web Signature by which the UI recognises a request of ours, valid for a minute.

    Parameters
    ----------
    key: base64url.

    Source: RFC 7515, and the filter of Spark: https://spark.apache.org/docs/4.1.0/security.html#web-ui
    """
    claims = {"sub": "sluice", "exp": int(now_seconds) + _TOKEN_SECONDS}
    signed = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims))
    signature = hmac.new(base64.urlsafe_b64decode(key), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{_encoded(signature)}"


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def bounded(answer: httpx.Response, deadline: float) -> bytes:
    """The body of an answer, read as it comes.

    Parameters
    ----------
    deadline: until when, by the monotonic clock.

    Raises
    ------
    DriverUiError: when it has more than `MOST_BYTES`, or is too slow.
    """
    parts: list[bytes] = []
    size = 0
    for part in answer.iter_bytes():
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES or time.monotonic() > deadline:
            raise DriverUiError(
                f"Spark's UI answers with more than {MOST_BYTES:,} bytes, or too slowly.",
                next_step="Choose fewer rows for a page, by `pageSize` in the address.",
            )
    return b"".join(parts)


def _shown(status: int, headers: Mapping[str, str], body: bytes, *, base: str) -> UiAnswer:
    """The part of an answer that passes: its status, its type and its text, or a redirect within the UI."""
    location = headers.get("location")
    if location is not None:
        path = httpx.URL(location).raw_path.decode()
        return UiAnswer(status=status, content_type="", body=b"", redirect=path.removeprefix(base).lstrip("/"))
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() not in SHOWN_TYPES:
        raise DriverUiError(
            f"Spark's UI answers with {content_type or 'something without a type'}, which is not shown here.",
            next_step="Pages, texts and JSON are.",
        )
    return UiAnswer(status=status, content_type=content_type, body=_META.sub(b"<x-meta", body))


def read_static_file(path: str) -> bytes | None:
    """A file of Spark's UI; none when it has no such file, or no pyspark is installed here.

    Parameters
    ----------
    path: below the UI's root, such as `static/webui.css`.
    """
    for beginning, (jar_name, folder) in _FOLDERS.items():
        name = path.removeprefix(beginning)
        if name == path or PurePosixPath(name).suffix not in FILE_TYPES:
            continue
        jar = _jar(jar_name)
        if jar is None:
            return None
        with ZipFile(jar) as opened:
            return opened.read(f"{folder}{name}") if f"{folder}{name}" in opened.namelist() else None
    return None


@cache
def _jar(name: str) -> Path | None:
    pyspark = find_spec("pyspark")  # finds the package without importing it
    places = pyspark.submodule_search_locations if pyspark is not None else None
    return next((jar for place in places or () for jar in sorted(Path(place, "jars").glob(name))), None)
