"""Airflow executes every scanned file of `plugins/` a second time; our package must not be among them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from sluice.settings import project_root

SCAN = """\
import json, sys
from airflow.plugins_manager import ensure_plugins_loaded, get_import_errors
ensure_plugins_loaded()
print(json.dumps({"modules": sorted(sys.modules), "errors": get_import_errors()}))
"""


def test_airflow_loads_no_module_of_ours_under_a_second_name() -> None:
    plugins = project_root() / "plugins"
    ours = {file.stem for file in (plugins / "sluice_airflow").rglob("*.py")} - {"__init__"}
    assert {"composition", "stream_trigger", "table_jobs"} <= ours
    environment = {**os.environ, "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins)}
    command = [sys.executable, "-c", SCAN]
    scanned = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)  # noqa: S603  # ours
    seen = json.loads(scanned.stdout.splitlines()[-1])
    assert seen["errors"] == {}
    assert ours & set(seen["modules"]) == set()


def test_what_dag_files_need_is_imported_before_airflow_forks() -> None:
    files = [file.read_text() for file in (project_root() / "dags").glob("*.py")]
    needed = set(re.findall(r"^from (sluice[\w.]*) import", "\n".join(files), re.MULTILINE))
    command = [sys.executable, "-c", SCAN]
    scanned = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  # ours
    assert needed
    assert needed <= set(json.loads(scanned.stdout.splitlines()[-1])["modules"])
