"""Every test is run by a ring of `make test`."""

from __future__ import annotations

import re

import pytest
from tests.architecture.source_modules import ROOT

MAKEFILE = (ROOT / "Makefile").read_text().replace("\\\n", "")

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


@pytest.mark.parametrize("ring", ["spark", "integration"])
def test_every_subject_of_a_large_ring_is_run_by_one_of_its_two_processes(ring: str) -> None:
    process = rf"^{ring.upper()}_\w+ := \$\(addprefix tests/{ring}/,(.*)\)$"
    subjects = [found.split() for found in re.findall(process, MAKEFILE, re.MULTILINE)]

    assert len(subjects) == 2
    assert sorted(subjects[0] + subjects[1]) == sorted(holds_tests(f"tests/{ring}"))
