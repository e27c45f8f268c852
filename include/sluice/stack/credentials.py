"""The credentials of a stack, generated at its first start."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from sluice.errors import StackError
from sluice.stack.compose_secrets import compose_secrets, driver_password
from sluice.stack.folder import StackFolder, write_private

AIRFLOW_USER = "admin"

KAFKA_USER = "sluice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Every secret of a stack; the fields are named like the variables of docker-compose.yaml. `repr` shows none."""

    postgres_password: str
    airflow_database_password: str
    ledger_password: str
    access_key_id: str
    secret_access_key: str
    kafka_password: str
    airflow_admin_password: str
    airflow_fernet_key: str
    airflow_jwt_secret: str
    airflow_secret_key: str

    def __repr__(self) -> str:
        return "Credentials(…)"

    @property
    def reader(self) -> tuple[str, str]:
        """The id and the secret of the identity that only reads tables and files.

        Both follow from the other key, from which a reader learns nothing about it: there is no second secret to keep.
        """
        secret = hmac.new(self.secret_access_key.encode(), b"reader", hashlib.sha256).hexdigest()
        return f"{self.access_key_id}reader", secret

    @property
    def ledger_driver_password(self) -> str:
        """The password of the role of continuous drivers, which follows from that of the ledger."""
        return driver_password(self.ledger_password)


_NAMES = tuple(field.name for field in fields(Credentials))


def generate_credentials() -> Credentials:
    """New credentials; all of them are safe inside a URL."""
    generated = {variable.lower(): secret for variable, secret in compose_secrets().items()}
    return Credentials(**{name: generated[name] for name in _NAMES})


def read_credentials(path: Path) -> Credentials:
    """The credentials of a stack that has been started before.

    Raises
    ------
    StackError: when the file is missing or damaged.
    """
    try:
        values = json.loads(path.read_text())
        return Credentials(**{name: str(values[name]) for name in _NAMES})
    except FileNotFoundError as error:
        raise StackError(f"{path} does not exist.", next_step="Start the stack with `sluice stack up`.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StackError(
            f"{path} is damaged: it does not hold every credential of the stack.",
            next_step=f"Restore it, or run `sluice stack down`, delete {path.parent} and start an empty stack.",
        ) from error


def ensure_credentials(folder: StackFolder, *, is_new: bool) -> Credentials:
    """Read the credentials, or generate them when the stack is new.

    Parameters
    ----------
    folder: the stack's folder; it exists.
    is_new: whether no service holds data yet. Data that was protected with lost credentials cannot be opened.

    Raises
    ------
    StackError: when the credentials of existing data are missing or damaged.
    """
    if folder.credentials.exists():
        return read_credentials(folder.credentials)
    if not is_new:
        raise StackError(
            f"{folder.credentials} is missing, but {folder.data} holds data that only its credentials open.",
            next_step=f"Restore the file, or delete {folder.data} to start an empty stack.",
        )
    credentials = generate_credentials()
    write_private(folder.credentials, json.dumps(asdict(credentials), indent=2) + "\n")
    return credentials
