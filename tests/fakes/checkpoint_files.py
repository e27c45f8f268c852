"""A checkpoint folder in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sluice.checkpoints.checkpoint_layout import FileObservation

WRITTEN_AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FakeCheckpointFiles:
    """The files of a checkpoint, by path; all were written at `WRITTEN_AT`."""

    texts: dict[str, str]
    location: str = "memory://checkpoint"

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`."""
        return [
            FileObservation(path=path, size_bytes=len(text.encode()), modified_at=WRITTEN_AT)
            for path, text in sorted(self.texts.items())
            if not folder or path.startswith(f"{folder}/")
        ]

    def read_text(self, path: str) -> str | None:
        """The text of one file, unset when it does not exist."""
        return self.texts.get(path)

    def read_bytes(self, path: str) -> bytes | None:
        """The content of one file, unset when it does not exist."""
        return None if (text := self.texts.get(path)) is None else text.encode()

    def write_text(self, path: str, text: str) -> None:
        """Write one file, in place of one that exists."""
        self.texts[path] = text

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write one file, in place of one that exists."""
        self.texts[path] = content.decode()

    def remove(self, path: str) -> None:
        """Remove one file; nothing happens when it does not exist."""
        self.texts.pop(path, None)

    def remove_folders(self) -> None:
        """Nothing happens: it has no folders."""
