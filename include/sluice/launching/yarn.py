"""YARN: applications through the REST API of its ResourceManager, and the settings that tag one.

Sources: https://hadoop.apache.org/docs/r3.4.2/hadoop-yarn/hadoop-yarn-site/ResourceManagerRest.html and
https://spark.apache.org/docs/4.1.0/running-on-yarn.html#spark-properties
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from sluice.errors import ClusterError
from sluice.launching.launcher_port import ApplicationObservation, ApplicationState, ApplicationTag
from sluice.settings import SETTINGS_FILE

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
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """Send a request, and return the JSON object of the response.

    Redirects are not followed: a standby ResourceManager redirects to the active one, and the caller knows both.

    Raises
    ------
    ClusterError: when there is no response, or it is an error or no JSON object; it knows the HTTP status.
    """
    import httpx  # takes longer to import than the rest of a command, which mostly has no cluster

    place = _place(url)
    verify = ssl.create_default_context() if url.startswith("https:") else False
    try:
        response = httpx.request(
            method,
            url,
            json=body,
            headers={"Accept": "application/json"},
            timeout=timeout_seconds,
            verify=verify,
            follow_redirects=False,
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


_QUEUED = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"})

_EXIT_CODE = re.compile(r"exitCode: (-?\d+)|[Ee]xit code:? (\d+)")
"""The exit code of the application master's process, which runs the driver, in an application's diagnostics."""

_EXPLANATION_CHARACTERS = 600

_SHELL = str.maketrans({character: f"\\{character}" for character in '\\"$`'})
"""The node writes each variable between double quotes into a shell script, without escaping it."""

_EXPANSION_MARKS = re.compile(r"(?<=\{)(?=\{)|(?<=\})(?=\})")
"""YARN takes `{{` and `}}` for the marks of a variable to expand, and nested JSON ends with `}}`. Quotes that close and
open again between two braces are nothing to the shell.
Source: https://hadoop.apache.org/docs/r3.4.2/api/org/apache/hadoop/yarn/api/ApplicationConstants.html
(`PARAMETER_EXPANSION_LEFT`)"""


def yarn_tags(tag: ApplicationTag) -> tuple[str, ...]:
    """Return the tag as an application's tags. YARN allows at most ten, of at most 100 small letters each."""
    return tuple(f"{key}:{value}" for key, value in tag.labels().items())


def yarn_conf(tag: ApplicationTag, environment: Mapping[str, str], settings_file: Path) -> dict[str, str]:
    """Return the settings of the application of one run.

    Parameters
    ----------
    tag: the tag by which the application is found.
    environment: variables of the driver without a secret; executors get only those of Python.
    settings_file: goes to each container of the application, where its user alone can read it.
    """
    python = {name: value for name, value in environment.items() if name.startswith("PYSPARK_")}
    return {
        **_spark_of_the_nodes(),
        "spark.yarn.dist.files": f"{settings_file.as_uri()}#{SETTINGS_FILE}",
        "spark.yarn.tags": ",".join(yarn_tags(tag)),
        # YARN would restart the same run whatever ended it; restarts are decided by the supervision.
        "spark.yarn.maxAppAttempts": "1",
        "spark.yarn.submit.waitAppCompletion": "false",
        **{f"spark.yarn.appMasterEnv.{name}": _for_the_script(value) for name, value in environment.items()},
        **{f"spark.executorEnv.{name}": _for_the_script(value) for name, value in python.items()},
    }


def _for_the_script(value: str) -> str:
    return _EXPANSION_MARKS.sub('""', value.translate(_SHELL))


def _spark_of_the_nodes() -> dict[str, str]:
    """Use the Spark of the nodes, which has the same path on each, as the jars and the project do. Without this setting
    `spark-submit` uploads Spark for every application."""
    found = find_spec("pyspark")  # finds the package without importing it
    if found is None or not found.submodule_search_locations:
        return {}
    return {"spark.yarn.jars": f"local:{Path(found.submodule_search_locations[0]) / 'jars'}/*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnCluster:
    """A YARN cluster.

    addresses: of the ResourceManager's web application, such as http://host:8088; of a pair both, in any order.
    user: the user who kills applications. YARN does not authenticate the user unless the cluster is secured.
    """

    addresses: tuple[str, ...]
    user: str

    def find(self, tag: ApplicationTag) -> ApplicationObservation | None:
        """Return the newest application with all of the tags.

        Raises
        ------
        ClusterError: when no ResourceManager answers.
        """
        tags = yarn_tags(tag)
        run_tag = next(one for one in tags if one.endswith(tag.run_id))
        # Only one tag: YARN returns the applications with any of the tags in a request.
        answer = self._request("GET", f"apps?{urlencode({'applicationTags': run_tag})}")
        apps = [app for app in (answer.get("apps") or {}).get("app", []) if _has_all(app, tags)]
        if not apps:
            return None
        return _observation_of(max(apps, key=lambda app: int(app.get("startedTime", 0))))

    def kill(self, application_id: str) -> None:
        """Ask the ResourceManager to end an application. It answers before the containers have ended.

        Raises
        ------
        ClusterError: when no ResourceManager answers, or it refuses.
        """
        path = f"apps/{application_id}/state?{urlencode({'user.name': self.user})}"
        try:
            self._request("PUT", path, body={"state": "KILLED"})
        except ClusterError as error:
            if error.status != 404:  # the ResourceManager drops applications that ended long ago
                raise

    def _request(self, method: str, path: str, *, body: object = None) -> dict[str, Any]:
        """Send a request to the active ResourceManager. A standby one redirects, which counts as an error."""
        problems = []
        for address in self.addresses:
            try:
                return request_json(method, f"{address.rstrip('/')}/ws/v1/cluster/{path}", body=body)
            except ClusterError as error:
                problems.append(error)
        refusal = next((error for error in problems if error.status not in (None, 307)), problems[-1])
        raise ClusterError(
            " ".join(error.message for error in problems),
            status=refusal.status,
            next_step="See the ResourceManager, and yarn_resourcemanager_webapp_address in the Spark connection.",
        )


def _has_all(app: Mapping[str, Any], tags: tuple[str, ...]) -> bool:
    return set(tags) <= set(str(app.get("applicationTags", "")).split(","))


def _observation_of(app: Mapping[str, Any]) -> ApplicationObservation:
    diagnostics = " ".join(str(app.get("diagnostics") or "").split())
    code = _EXIT_CODE.search(diagnostics)
    return ApplicationObservation(
        application_id=app["id"],
        state=_state_of(app),
        explanation=diagnostics[:_EXPLANATION_CHARACTERS],
        exit_code=int(code[1] or code[2]) if code is not None else None,
    )


def _state_of(app: Mapping[str, Any]) -> ApplicationState:
    """An application whose driver failed on its last attempt has the state FINISHED and the final status FAILED."""
    state = app["state"]
    if state in _QUEUED:
        return ApplicationState.QUEUED
    if state == "RUNNING":
        return ApplicationState.RUNNING
    ended = app.get("finalStatus") if state == "FINISHED" else state
    endings = {"SUCCEEDED": ApplicationState.SUCCEEDED, "KILLED": ApplicationState.KILLED}
    return endings.get(str(ended), ApplicationState.FAILED)
