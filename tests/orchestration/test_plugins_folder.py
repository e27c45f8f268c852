"""Airflow executes every scanned file of `plugins/` a second time; our package must not be among them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from sluice.settings import project_root

SCAN = """\
import json, sys
from airflow.plugins_manager import ensure_plugins_loaded, get_import_errors
ensure_plugins_loaded()
print(json.dumps({"modules": sorted(sys.modules), "errors": get_import_errors()}))
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What a process of Airflow has imported when it has loaded its plugins, and what went wrong."""
    environment = {**os.environ, "AIRFLOW__CORE__PLUGINS_FOLDER": str(project_root() / "plugins")}
    command = [sys.executable, "-c", SCAN]
    scanned = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)  # noqa: S603  # our own interpreter and text
    return dict(json.loads(scanned.stdout.splitlines()[-1]))


def test_airflow_loads_no_module_of_ours_under_a_second_name(seen: dict[str, Any]) -> None:
    plugins = project_root() / "plugins"
    ours = {file.stem for file in (plugins / "sluice_airflow").rglob("*.py")} - {"__init__"}
    assert {"composition", "stream_trigger", "table_jobs"} <= ours
    assert seen["errors"] == {}
    assert ours & set(seen["modules"]) == set()


def test_what_dag_files_need_is_imported_before_airflow_forks(seen: dict[str, Any]) -> None:
    files = [file.read_text() for file in (project_root() / "dags").glob("*.py")]
    needed = set(re.findall(r"^from (sluice[\w.]*) import", "\n".join(files), re.MULTILINE))
    assert needed
    assert needed <= set(seen["modules"])
