"""The text files that are committed: what a reader of the repository sees."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from tests.architecture.source_modules import ROOT

_NOT_TEXT = {".png", ".svg", ".ico", ".gz", ".zip", ".parquet", ".avro"}


@cache
def committed_files() -> tuple[Path, ...]:
    """Every committed text file; in a source archive without git, every file outside hidden folders."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603  # ours
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        files = [path for path in ROOT.rglob("*") if not path.relative_to(ROOT).parts[0].startswith(".")]
    return tuple(path for path in files if path.is_file() and path.suffix not in _NOT_TEXT)
