"""The same declaration gives the same rows, whatever time zone the host of a driver has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from tests.fixtures.drill import sampled
from tests.fixtures.merging_by_time import MISSING_HOURS, REPEATED_HOURS
from tests.fixtures.stack import Stack

from sluice.settings import project_root


@pytest.mark.full  # every run merges in the time zone of its host
@pytest.mark.parametrize("zone", sampled(("UTC", "Europe/Berlin", "America/St_Johns"), ["Europe/Berlin"]))
def test_merges_by_time_find_their_keys_under_any_time_zone(zone: str, services: Stack, tmp_path: Path) -> None:
    folder = tmp_path / f"n{uuid4().hex[:12]}"
    folder.mkdir()

    modules = os.pathsep.join((str(project_root()), os.environ.get("PYTHONPATH", "")))

    ended = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-m", "tests.fixtures.merging_by_time", str(folder)],
        env={**os.environ, **services.environment(), "TZ": zone, "PYTHONPATH": modules},
        cwd=project_root(),
        capture_output=True,
        text=True,
        timeout=500,
    )

    assert ended.returncode == 0, ended.stderr[-3000:]
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("found "))
    found = json.loads(line.removeprefix("found "))
    assert (found.pop("zone") == "UTC") is (zone == "UTC")
    rows = [
        [f"{time}:00", f"{time}:00+00:00", time[:10], f"{time} 00:00", "1"]
        for time in sorted(text.replace("T", " ") for text in (*REPEATED_HOURS, *MISSING_HOURS))
    ]
    assert found == {"by_time": rows, "by_instant": rows}
