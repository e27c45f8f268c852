"""`make test` runs its rings side by side, and still tells the truth about each."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.fixtures.readme import PROJECT


def checks(ring: str) -> subprocess.CompletedProcess[str]:
    """The rings of `make test` with a program in pytest's place, in a make of their own, their setup left out."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    words = ["make", "--assume-old=setup", "--jobs=2", "checks", "CHECKS=test-spark test-integration", f"PYTEST={ring}"]
    return subprocess.run(words, cwd=PROJECT, env=outside, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  # every word is fixed in this file


@pytest.mark.parametrize(("ring", "exit_code"), [("true", 0), ("false", 2)])
def test_a_ring_that_fails_fails_the_whole(ring: str, exit_code: int) -> None:
    assert checks(ring).returncode == exit_code


def test_rings_side_by_side_print_whole_lines() -> None:
    in_pieces = "sh -c 'for part in a b c d; do printf $$part; sleep 0.05; done; echo' --"

    printed = checks(in_pieces).stdout.splitlines()

    assert printed.count("abcd") == 2
