"""Every test is run by a ring of `make test`."""

from __future__ import annotations

import re

from tests.architecture.source_modules import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()

BESIDE_MAKE_TEST = {"yarn"}
"""Tests that fetch what nothing else needs, with a target of their own."""


def holds_tests(folder: str) -> set[str]:
    """The folders directly below a folder that hold tests, and the files of tests in itself."""
    paths = (ROOT / folder).rglob("test_*.py")
    return {path.relative_to(ROOT / folder).parts[0] for path in paths}


def test_every_folder_of_tests_belongs_to_a_ring() -> None:
    ring = r"^\t(?:\$\(BESIDE\) )?\$\(PYTEST\) \$\(SELECTION\) (.*?) \$\(WHOLE_LINES\)$"
    rings = re.findall(ring, MAKEFILE, re.MULTILINE)

    folders = {word.removeprefix("tests/") for ring in rings for word in ring.split() if word.startswith("tests/")}
    assert holds_tests("tests") == folders | BESIDE_MAKE_TEST


def test_every_subject_of_spark_is_run_by_one_of_its_two_processes() -> None:
    processes = re.findall(r"^SPARK_\w+ := \$\(addprefix tests/spark/,(.*)\)$", MAKEFILE, re.MULTILINE)

    assert len(processes) == 2
    assert sorted(subject for process in processes for subject in process.split()) == sorted(holds_tests("tests/spark"))
