"""Checkpoint files in a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.errors import CheckpointStorageError
from sluice.settings import ObjectStoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ATTEMPTS = 3
"""How often one request is tried. A check is repeated on schedule, so a store that is down is reported at once."""


class S3CheckpointFiles:
    """The files below an `s3://` or `s3a://` URI. See `sluice.checkpoints.checkpoint_files.CheckpointFiles`."""

    def __init__(self, location: str, object_store: ObjectStoreSettings) -> None:
        self.location = location.rstrip("/")
        parts = urlsplit(location)
        self._bucket = parts.netloc
        self._prefix = parts.path.strip("/")
        self._client = s3_client(object_store)

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`."""
        below = f"{key}/" if (key := self._key(folder)) else ""  # a folder may be a whole bucket
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=below)
        with self._sentences("listed"):
            return [
                FileObservation(
                    path=found["Key"].removeprefix(f"{self._prefix}/" if self._prefix else ""),
                    size_bytes=found["Size"],
                    modified_at=found["LastModified"],
                    version=found["ETag"],
                )
                for page in pages
                for found in page.get("Contents", [])
                if not found["Key"].endswith("/")  # Hadoop marks folders with empty objects
            ]

    def read_text(self, path: str) -> str | None:
        """The text of one file, unset when it does not exist."""
        content = self.read_bytes(path)
        return None if content is None else content.decode("utf-8", errors="replace")

    def read_bytes(self, path: str) -> bytes | None:
        """The content of one file, unset when it does not exist."""
        with self._sentences(f"read ({path})"):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._key(path))
            except self._client.exceptions.NoSuchKey:
                return None
            return answer["Body"].read()

    def write_text(self, path: str, text: str) -> None:
        """Write one file, in place of one that exists."""
        self.write_bytes(path, text.encode())

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write one file, in place of one that exists."""
        with self._sentences(f"written ({path})"):
            self._client.put_object(Bucket=self._bucket, Key=self._key(path), Body=content)

    def remove(self, path: str) -> None:
        """Remove one file; nothing happens when it does not exist."""
        with self._sentences(f"changed ({path})"):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(path))

    def remove_folders(self) -> None:
        """Remove the empty objects by which Hadoop marks folders."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=f"{self._prefix}/")
        with self._sentences("changed"):
            found = [one["Key"] for page in pages for one in page.get("Contents", [])]
            for key in found:
                if key.endswith("/") and not any(one.startswith(key) and not one.endswith("/") for one in found):
                    self._client.delete_object(Bucket=self._bucket, Key=key)

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    @contextmanager
    def _sentences(self, done: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise CheckpointStorageError(
                f"The folder {self.location} cannot be {done}: {error}.",
                next_step="Check that the object store runs and that SLUICE_OBJECT_STORE__* describe it.",
            ) from error


def s3_client(object_store: ObjectStoreSettings) -> S3Client:
    """A client of the S3 store. Without keys it uses the machine's own identity.

    Checksums are sent only where S3 requires them: older servers refuse the newer ones.
    """
    import boto3
    from botocore.config import Config

    key, secret = object_store.access_key_id, object_store.secret_access_key
    return boto3.client(
        "s3",
        endpoint_url=object_store.endpoint,
        region_name=object_store.region,
        aws_access_key_id=key.get_secret_value() if key else None,
        aws_secret_access_key=secret.get_secret_value() if secret else None,
        config=Config(
            s3={"addressing_style": "path" if object_store.endpoint else "auto"},
            retries={"max_attempts": ATTEMPTS, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
