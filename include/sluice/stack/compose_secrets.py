"""Generate the secrets of a stack, and write those of docker-compose.yaml.

`python3 include/sluice/stack/compose_secrets.py` is run once, on a machine that may have nothing but Docker and Python,
so this module imports the standard library only. The secrets of an existing file stay as they are, since data that was
protected with them cannot be opened with others. A file of an earlier version gets what came later.
"""

import base64
import hashlib
import hmac
import os
import secrets
import sys
from pathlib import Path


def compose_secrets() -> dict[str, str]:
    """A new secret for every variable that docker-compose.yaml requires.

    They come from the operating system's source of randomness, and all of them are safe inside a URL.
    """
    ledger_password = secrets.token_urlsafe(24)
    return {
        "POSTGRES_PASSWORD": secrets.token_urlsafe(24),
        "AIRFLOW_DATABASE_PASSWORD": secrets.token_urlsafe(24),
        "LEDGER_PASSWORD": ledger_password,
        "LEDGER_DRIVER_PASSWORD": driver_password(ledger_password),
        "ACCESS_KEY_ID": f"sluice{secrets.token_hex(7)}",
        "SECRET_ACCESS_KEY": secrets.token_urlsafe(30),
        "KAFKA_PASSWORD": secrets.token_urlsafe(24),
        "AIRFLOW_ADMIN_PASSWORD": secrets.token_urlsafe(12),
        "AIRFLOW_FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW_JWT_SECRET": secrets.token_urlsafe(64),
        "AIRFLOW_SECRET_KEY": secrets.token_urlsafe(32),
    }


def driver_password(ledger_password: str) -> str:
    """The password of the ledger's role of drivers; that of the other role cannot be derived from it."""
    return hmac.new(ledger_password.encode(), b"drivers", hashlib.sha256).hexdigest()


def write_secrets(path: Path) -> bool:
    """Write the file, readable by its owner alone, unless there is one, which is closed to others and completed.

    Parameters
    ----------
    path: the `.env` file beside docker-compose.yaml.

    Returns
    -------
    Whether it was written or completed.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        return _complete(path)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in compose_secrets().items())
    return True


def _complete(path: Path) -> bool:
    """Add the password of drivers to a file that has that of the ledger alone."""
    text = path.read_text(encoding="utf-8")
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if "LEDGER_DRIVER_PASSWORD" in values or "LEDGER_PASSWORD" not in values:
        return False
    ending = "" if text.endswith("\n") else "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{ending}LEDGER_DRIVER_PASSWORD={driver_password(values['LEDGER_PASSWORD'])}\n")
    return True


if __name__ == "__main__":
    ENV = Path(__file__).resolve().parents[3] / ".env"
    sys.stdout.write(f"{ENV} was written.\n" if write_secrets(ENV) else f"{ENV} exists and was left as it is.\n")
