"""Opens the Iceberg catalog of a deployment with a timeout for every request, and turns its errors into messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import OAUTH2_SERVER_URI, RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
    ValidationException,
)
from pyiceberg.exceptions import ValidationError as IcebergValidationError
from pyiceberg.io import PY_IO_IMPL, FileIO
from pyiceberg.typedef import EMPTY_DICT, Properties
from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from sluice.errors import LakehouseError
from sluice.settings import Settings

CONNECT_SECONDS = 5.0
"""A running service accepts within milliseconds; five seconds are enough on a busy machine."""

ANSWER_SECONDS = 60.0
"""How long a request may wait for its answer. A commit rewrites the table's metadata file: seconds for a large one."""

_RETRIES = Retry(
    total=4,
    connect=4,
    read=2,
    status=4,
    backoff_factor=0.3,
    status_forcelist=(429, 502, 503, 504),
    allowed_methods=frozenset({"GET", "HEAD"}),
    raise_on_status=False,
)
"""Only reads are repeated, within five seconds in total: the outcome of an unanswered commit is unknown."""

_CHECK_ADDRESS = "Check that the catalog runs (`sluice stack status`) and that SLUICE_CATALOG__URI is its address."
_CHECK_CREDENTIAL = "Check that SLUICE_CATALOG__CREDENTIAL is a credential of the catalog."


def open_catalog(settings: Settings, *, keeps_manifests: bool = False) -> Catalog:
    """Open the deployment's catalog.

    Parameters
    ----------
    settings: the addresses and credentials of the catalog and the object store.
    keeps_manifests: whether this process reads a manifest once (`KeptManifests`).

    Raises
    ------
    LakehouseError: when the catalog cannot be reached or refuses the credential.
    """
    with catalog_refusals(f"open the catalog at {settings.catalog.uri}"):
        catalog = BoundedRestCatalog(settings.catalog.name, **catalog_properties(settings))
        catalog.keeps_manifests = keeps_manifests
        return catalog


def catalog_properties(settings: Settings) -> dict[str, str]:
    """The properties of the catalog and its file access by pyiceberg's names, credentials included.

    Source: https://py.iceberg.apache.org/configuration/
    """
    catalog, store = settings.catalog, settings.object_store
    properties = {
        "uri": catalog.uri,
        "warehouse": catalog.warehouse,
        "credential": catalog.credential.get_secret_value() if catalog.credential else None,
        "oauth2-server-uri": catalog.oauth2_server_uri,
        "s3.endpoint": store.endpoint,
        "s3.region": store.region,
        "s3.access-key-id": store.access_key_id.get_secret_value() if store.access_key_id else None,
        "s3.secret-access-key": store.secret_access_key.get_secret_value() if store.secret_access_key else None,
        "s3.connect-timeout": str(CONNECT_SECONDS),
        "s3.request-timeout": str(ANSWER_SECONDS),
    }
    return {name: value for name, value in properties.items() if value is not None}


@contextmanager
def catalog_refusals(action: str, *, but_not: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn errors of the catalog and the object store into a `LakehouseError`.

    Parameters
    ----------
    action: the attempted action, to follow "Cannot", for example `create the table bronze.flights`.
    but_not: errors that the caller handles itself; they are raised unchanged.
    """
    try:
        yield
    except but_not:
        raise
    except (OAuthError, UnauthorizedError, ForbiddenError) as error:
        raise LakehouseError(
            f"Cannot {action}: access denied: {_first_line(error)}.", next_step=_CHECK_CREDENTIAL
        ) from error
    except RequestException as error:
        raise LakehouseError(f"Cannot {action}: {_unreachable(error)}.", next_step=_CHECK_ADDRESS) from error
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise LakehouseError(
            f"Cannot {action}: {_first_line(error)}.", next_step="Run `sluice table create`."
        ) from error
    except CommitFailedException as error:
        raise LakehouseError(
            f"Cannot {action}: another writer changed the table at the same time: {_first_line(error)}.",
            next_step="Try again.",
        ) from error
    except (RESTError, IcebergValidationError, ValidationException, OSError) as error:
        raise LakehouseError(f"Cannot {action}: {_first_line(error)}.") from error


class BoundedRestCatalog(RestCatalog):
    """pyiceberg's REST catalog with timeouts; without them it waits for ever for a service that does not answer.

    keeps_manifests: whether manifests that were read are kept.
    """

    keeps_manifests = False

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        # pyiceberg has a property for the class, and logs a line for each table that is loaded with it. The catalog's
        # server may name another one by it.
        from sluice.tables.whole_files import KeptManifests, WholeWrites  # half a second, and most open no file

        if PY_IO_IMPL in (of_table := {**self.properties, **properties}):
            return super()._load_file_io(properties, location)
        return (KeptManifests if self.keeps_manifests else WholeWrites)(of_table)

    def _config_headers(self, session: Session) -> None:
        # pyiceberg calls this first on a new session, before it requests a token; it has no public hook for it.
        for scheme in ("http://", "https://"):
            session.mount(scheme, _BoundedAdapter(max_retries=_RETRIES))
        self._read_environment_once(session)
        super()._config_headers(session)

    def _read_environment_once(self, session: Session) -> None:
        """Take proxies and certificates from the environment now, unless the token server has others than the catalog:
        requests searches all of it at every request, which is a tenth of what a look at a small table costs."""
        servers = {self.uri, self.properties.get(OAUTH2_SERVER_URI, self.uri)}
        found, *others = (session.merge_environment_settings(one, {}, None, None, None) for one in servers)
        if all(one == found for one in others):
            session.proxies, session.verify, session.trust_env = found["proxies"], found["verify"], False


class _BoundedAdapter(HTTPAdapter):
    """Sets the timeouts of this module on a request without any."""

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: dict[str, str] | None = None,
    ) -> Response:
        bounds = timeout if timeout is not None else (CONNECT_SECONDS, ANSWER_SECONDS)
        return super().send(request, stream=stream, timeout=bounds, verify=verify, cert=cert, proxies=proxies)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def _unreachable(error: RequestException) -> str:
    """The reason why no answer came, without urllib3's chain of objects."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return f"no answer ({type(error).__name__})"
