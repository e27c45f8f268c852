"""What a page of Spark's own UI may do in a browser, and which files of Spark are served."""

from __future__ import annotations

import pytest

from sluice.pages.spark_ui import read_static_file
from sluice_airflow.pages.page_guard import spark_ui_policy

BASE = "/sluice/streams/clicks/spark/proxy/local-1"


def test_scripts_come_from_spark_s_files_alone_and_none_of_a_page_s_text_runs() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in spark_ui_policy("localhost:8080", BASE).split(";"))

    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"localhost:8080{BASE}/static/"
    assert rules["connect-src"] == rules["form-action"] == f"localhost:8080{BASE}/"
    assert rules["base-uri"] == "'none'"


@pytest.mark.parametrize("host", ["", "a b", "x; script-src *", "[::1]:80", "host:123456"])
def test_a_host_of_another_form_loads_nothing(host: str) -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in spark_ui_policy(host, BASE).split(";"))

    assert rules["script-src"] == rules["connect-src"] == "'none'"
    assert host not in spark_ui_policy(host, BASE) or not host


def test_only_the_files_of_spark_s_ui_are_served() -> None:
    assert (read_static_file("static/webui.css") or b"").startswith(b"/*")
    assert read_static_file("static/sql/spark-sql-viz.js")
    for path in ("static/package.json", "static/../../x.js", "static/no_such.js", "jobs/webui.js", "static/", "static"):
        assert read_static_file(path) is None, path
