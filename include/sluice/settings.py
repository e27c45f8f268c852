"""The one list of what a deployment configures, read from `SLUICE_*` environment variables."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSettingsError

from sluice.errors import SettingsError
from sluice.messages import name_secrets
from sluice.processes.driver_watch import LARGEST_LOG_BYTES


def project_root() -> Path:
    """The folder that holds `dags/`, `jobs/`, `plugins/` and `include/`: three levels above this installed package."""
    return Path(__file__).resolve().parents[2]


def pipelines_folder() -> Path:
    """The folder of the declarations, found without the rest of the settings.

    DAG files are parsed where no service needs to be configured, so only `SLUICE_PIPELINES` and `SLUICE_HOME` are read.
    """
    explicit = os.environ.get("SLUICE_PIPELINES")
    return Path(explicit) if explicit else Path(os.environ.get("SLUICE_HOME", project_root())) / "include" / "pipelines"


class CatalogSettings(BaseModel):
    """How to reach the Iceberg REST catalog.

    Source: https://iceberg.apache.org/docs/latest/spark-configuration/#catalog-configuration
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("lakehouse", pattern=r"^[a-z][a-z0-9_]{0,62}$", description="the catalog's name in Spark SQL")
    uri: str = Field(description="the address of the REST catalog")
    warehouse: str = Field(description="the warehouse, for example s3://lakehouse")
    credential: SecretStr | None = Field(None, description="OAuth2 client credential, id:secret")
    oauth2_server_uri: str | None = Field(None, description="where a credential is exchanged for a token")


class ObjectStoreSettings(BaseModel):
    """How to reach the S3 store that holds tables and files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str | None = Field(None, description="the address of the S3 service; unset means AWS")
    region: str = Field("us-east-1", description="the region requests are signed for")
    access_key_id: SecretStr | None = Field(None, description="unset means the machine's own identity")
    secret_access_key: SecretStr | None = Field(None, description="unset means the machine's own identity")


class KafkaConnection(BaseModel):
    """A Kafka cluster that declarations refer to by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["kafka"]
    bootstrap_servers: str = Field(description="host:port, comma separated")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="whether the connection is encrypted (SSL) and how it is authenticated (SASL)"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="with SASL: how the password is proved"
    )
    username: str | None = Field(None, description="with SASL: the user")
    password: SecretStr | None = Field(None, description="with SASL: the user's password")
    ca_file: Path | None = Field(
        None, description="with SSL: the certificates that brokers are trusted by, PEM; unset: the machine's own"
    )
    client_certificate_file: Path | None = Field(
        None, description="with SSL: the client's own key and certificate in one PEM file"
    )

    @model_validator(mode="after")
    def _security_is_whole(self) -> Self:
        sasl = (self.sasl_mechanism, self.username, self.password)
        if self.security_protocol.startswith("SASL") and None in sasl:
            raise ValueError(f"{self.security_protocol} needs sasl_mechanism, username and password")
        if not self.security_protocol.startswith("SASL") and sasl != (None, None, None):
            raise ValueError("sasl_mechanism, username and password belong to SASL_PLAINTEXT and SASL_SSL")
        if not self.security_protocol.endswith("SSL") and (self.ca_file or self.client_certificate_file):
            raise ValueError("ca_file and client_certificate_file belong to SSL and SASL_SSL")
        return self


class FilesConnection(BaseModel):
    """A folder that declarations refer to by name; a declaration names paths below it and never leaves it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["files"]
    root: str = Field(description="the folder's URI, for example s3a://landing", pattern=r"^[a-z0-9]+://\S+$")


class JdbcConnection(BaseModel):
    """A database that declarations refer to by name; PostgreSQL, whose driver is on Spark's class path."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["jdbc"]
    url: str = Field(
        description="jdbc:postgresql://host:port/database, without user and password",
        pattern=r"^jdbc:postgresql://[^\s?@]+(\?[a-zA-Z&=_.0-9/-]*)?$",
    )
    user: str | None = Field(None, description="the role that reads")
    password: SecretStr | None = Field(None, description="its password")

    @field_validator("url")
    @classmethod
    def _url_holds_no_secret(cls, url: str) -> str:
        if "password=" in url or "user=" in url:
            raise ValueError("user and password are settings of their own: an address is written into logs")
        return url


class KinesisConnection(BaseModel):
    """An account and region of Kinesis that declarations refer to by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["kinesis"]
    region: str = Field("us-east-1", description="the region of the streams")
    endpoint: str | None = Field(None, description="the address of the service; unset means AWS")
    access_key_id: SecretStr | None = Field(None, description="unset means the machine's own identity")
    secret_access_key: SecretStr | None = Field(None, description="unset means the machine's own identity")


class SchemaRegistryConnection(BaseModel):
    """A schema registry that declarations refer to by name; it speaks Confluent's API."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["schema_registry"]
    url: str = Field(
        description="the address below which `/subjects` and `/schemas` lie, without user and password",
        pattern=r"^https?://[^\s?#@]+$",
    )
    username: str | None = Field(None, description="the user of the requests; unset: requests without a user")
    password: SecretStr | None = Field(None, description="the user's password")
    ca_file: Path | None = Field(
        None, description="the certificates that the registry is trusted by, PEM; unset: the machine's own"
    )

    @model_validator(mode="after")
    def _user_is_whole(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together")
        if self.ca_file is not None and not self.url.startswith("https://"):
            raise ValueError("ca_file belongs to https")
        return self


ConnectionSettings = Annotated[
    KafkaConnection | FilesConnection | JdbcConnection | KinesisConnection | SchemaRegistryConnection,
    Field(discriminator="kind"),
]
Connection = TypeVar("Connection", bound=BaseModel)

_UNREADABLE = re.compile(r'field "(\w+)"')
_MOST_DAYS = 36_500
_SHORTEST_MASKED = 8


class Settings(BaseSettings):
    """A deployment of Sluice: where its declarations, ledger, catalog, object store and folders are."""

    model_config = SettingsConfigDict(
        env_prefix="SLUICE_", env_nested_delimiter="__", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    home: Path = Field(default_factory=project_root, description="the folder with dags/, jobs/, plugins/, include/")
    pipelines: Path = Field(
        default_factory=lambda: pipelines_folder(), description="the declarations; HOME/include/pipelines when unset"
    )
    jars: Path = Field(description="the folder with one folder of jars for each class path of ivy.xml")
    logs: Path = Field(description="the folder of the drivers' log files")
    driver_log_bytes: int = Field(
        LARGEST_LOG_BYTES, gt=0, description="the size at which a driver's log is rotated; three rotated logs are kept"
    )
    batches_kept_days: int = Field(30, gt=0, le=_MOST_DAYS, description="how many days the ledger keeps batches")
    runs_kept_days: int = Field(
        90,
        gt=0,
        le=_MOST_DAYS,
        description="after how many days the ledger archives ended runs; the newest of each stream stay",
    )
    events_kept_days: int = Field(365, gt=0, le=_MOST_DAYS, description="how many days the ledger keeps events")
    leftovers_kept_days: int = Field(
        30,
        gt=0,
        le=_MOST_DAYS,
        description="how many days a stream's leftovers are kept once nothing needs them: checkpoints of closed "
        "generations with their copies, and tables of refreshes and backfills that died",
    )
    driver_logs_kept_days: int = Field(
        30,
        gt=0,
        le=_MOST_DAYS,
        description="after how many days a driver's log is deleted; that of a stream's newest run stays",
    )
    airflow_logs_kept_days: int = Field(
        30,
        gt=0,
        le=_MOST_DAYS,
        description="how many days the logs of Sluice's own tasks in Airflow are kept; those of streams stay",
    )
    maintenance_seconds_a_day: int | None = Field(
        None,
        gt=0,
        description="how many seconds the steps of the scheduled maintenance of all tables take in 24 hours at most; "
        "unset: as many as they need",
    )
    maintenance_bytes_a_day: int | None = Field(
        None,
        gt=0,
        description="how many bytes of data files the scheduled maintenance rewrites in 24 hours at most; unset: as "
        "many as are due",
    )
    approval_by_another: bool = Field(
        False,
        description="whether a reset or the rejection of a batch in Airflow must be approved by another person than "
        "the one who asked",
    )
    reports: Path = Field(description="the folder of the quality reports (Data Docs)")
    ledger_url: SecretStr = Field(description="SQLAlchemy URL of the ledger, postgresql+psycopg://…")
    ledger_owner_url: SecretStr | None = Field(
        None,
        description="the same with the role that owns the tables, for `sluice ledger upgrade` alone; the other role "
        "then owns nothing",
    )
    ledger_driver_url: SecretStr | None = Field(
        None,
        description="the same with the role of continuous drivers, which may write the rows of their own stream alone; "
        "unset: they get the role of SLUICE_LEDGER_URL",
    )
    checkpoints: str = Field(description="the URI below which every checkpoint lies", pattern=r"^[a-z0-9]+://\S+$")
    event_logs: str | None = Field(
        None,
        pattern=r"^[a-z0-9]+://\S+$",
        description="the URI below which every job writes Spark's event log, for a history server; unset: none does",
    )
    catalog: CatalogSettings
    object_store: ObjectStoreSettings
    connections: dict[str, ConnectionSettings] = Field(
        default_factory=dict, description="what declarations refer to by name"
    )

    def secret_values(self) -> tuple[str, ...]:
        """Every secret of the deployment, as it would stand in a text: for what masks them in logs. A shorter one than
        eight characters is left out, because it may be a word that other lines hold."""
        urls = [url for url in (self.ledger_url, self.ledger_owner_url, self.ledger_driver_url) if url is not None]
        forms = (r"://[^/@:]*:(.+)@", r"driver_pass(?:=|%3D)([\w-]+)")
        matches = (re.search(form, url.get_secret_value()) for url in urls for form in forms)
        passwords = [match[1] for match in matches if match is not None]
        parts: list[BaseModel] = [self, self.catalog, self.object_store, *self.connections.values()]
        found = [value.get_secret_value() for part in parts for _, value in part if isinstance(value, SecretStr)]
        return tuple(one for one in (*found, *passwords) if len(one) >= _SHORTEST_MASKED)

    def connection(self, name: str, kind: type[Connection]) -> Connection:
        """The connection of a name.

        Raises
        ------
        SettingsError: when the deployment does not have it, or has it as another kind.
        """
        connection = self.connections.get(name)
        if isinstance(connection, kind):
            return connection
        found = f"is of kind {connection.kind}" if connection is not None else "is not set"
        raise SettingsError(
            f"The connection {name} {found}; the deployment has {', '.join(sorted(self.connections)) or 'none'}.",
            next_step=f"Set SLUICE_CONNECTIONS__{name.upper()}__KIND and what belongs to it; see docs/settings.md.",
        )


SETTINGS_FILE_VARIABLE = "SLUICE_SETTINGS_FILE"
SETTINGS_FILE = "sluice-settings.json"
"""The file of an application of a cluster that has the deployment's variables, and the variable that names it."""


def take_settings_file() -> None:
    """Take the variables of the deployment from their file, in the driver of a cluster; elsewhere there is none.

    Raises
    ------
    SettingsError: when it cannot be read. What it holds stays out of the message.
    """
    named = os.environ.get(SETTINGS_FILE_VARIABLE)
    if named is None:
        return
    try:
        os.environ.update(json.loads(Path(named).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise SettingsError(
            f"{named}, the file with the deployment's settings, cannot be read in {Path.cwd()}.",
            next_step="See the log of the application's localisation: `yarn logs`.",
        ) from None


def load_settings() -> Settings:
    """Read the settings from the environment. From then on no text of this process shows one of their secrets.

    Raises
    ------
    SettingsError: when a variable is missing or has a wrong form; the message names the variables, never their values.
    """
    try:
        settings = Settings()
    except UnreadableSettingsError as error:
        field = _UNREADABLE.search(str(error))
        variables = f"SLUICE_{field[1].upper()}, or a variable that begins so," if field is not None else "A variable"
        # `from None`: the cause repeats what was written, and it may be secret.
        raise SettingsError(
            f"The environment does not describe a deployment: {variables} is not JSON.",
            next_step="Correct it, or set its parts by variables of their own; docs/settings.md lists them.",
        ) from None
    except ValidationError as error:
        problems = "; ".join(
            f"SLUICE_{'__'.join(str(part) for part in problem['loc']).upper()}: {problem['msg']}"
            for problem in error.errors(include_input=False)
        )
        raise SettingsError(
            f"The environment does not describe a deployment: {problems}.",
            next_step="Start the local stack with `sluice stack up`, or set the variables listed in docs/settings.md.",
        ) from error
    name_secrets(settings.secret_values())
    return settings
