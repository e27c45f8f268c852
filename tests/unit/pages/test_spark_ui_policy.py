"""What a page of Spark's own UI may do in a browser, and which files of Spark are served."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from sluice.launching.launch_settings import LOOPBACK
from sluice.pages.spark_ui import _shown, listens_on, read_static_file
from sluice_airflow.pages.page_guard import spark_ui_policy

BASE = "/sluice/streams/clicks/spark/proxy/local-1"


def test_scripts_come_from_spark_s_files_alone_and_none_of_a_page_s_text_runs() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in spark_ui_policy("localhost:8080", BASE).split(";"))

    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"localhost:8080{BASE}/static/"
    assert rules["connect-src"] == rules["form-action"] == f"localhost:8080{BASE}/"
    assert rules["base-uri"] == "'none'"
    assert rules["sandbox"].split() == ["allow-scripts", "allow-same-origin", "allow-forms"]


@pytest.mark.parametrize("host", ["", "a b", "x; script-src *", "[::1]:80", "host:123456"])
def test_a_host_of_another_form_loads_nothing(host: str) -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in spark_ui_policy(host, BASE).split(";"))

    assert rules["script-src"] == rules["connect-src"] == "'none'"
    assert host not in spark_ui_policy(host, BASE) or not host


def test_a_page_leads_to_no_other_address_by_itself() -> None:
    body = b'<META http-equiv=refresh content="0; url=https://evil.example"><p>jobs'

    assert _shown(200, {"content-type": "text/html"}, body, base=BASE).body == (
        b'<x-meta http-equiv=refresh content="0; url=https://evil.example"><p>jobs'
    )


def test_a_port_belongs_to_the_process_that_listens_on_it() -> None:
    with socket.create_server((LOOPBACK, 0)) as own:
        port = own.getsockname()[1]
        assert listens_on(os.getpid(), port)
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:  # our own
            assert not listens_on(other.pid, port)
            other.communicate(b"\n")
        assert not listens_on(other.pid, port), "it has ended"


def test_only_the_files_of_spark_s_ui_are_served() -> None:
    assert (read_static_file("static/webui.css") or b"").startswith(b"/*")
    assert read_static_file("static/sql/spark-sql-viz.js")
    for path in ("static/package.json", "static/../../x.js", "static/no_such.js", "jobs/webui.js", "static/", "static"):
        assert read_static_file(path) is None, path
