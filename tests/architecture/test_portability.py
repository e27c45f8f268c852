"""What is committed works on any machine: no path of one, no address of a registry."""

from __future__ import annotations

import re

from tests.architecture.committed_files import committed_files
from tests.architecture.source_modules import ROOT

LOCKS = {"uv.lock"}
"""Written by a tool, which records where each file comes from."""

# Put together from parts, so that this file does not find itself.
MACHINE_PATH = re.compile(
    r"(?<![\w.{}$])/(?:" + "|".join(["home/[a-z]", "Users/[a-z]", "ro" + "ot/", "wo" + "rk/"]) + ")"
)
REGISTRY = re.compile(
    "|".join(
        name.replace("·", r"\.")
        for name in ("py" + "pi·org", "files·python" + "hosted·org", "repo1?·maven", "registry·npm", "gh" + "cr·io")
    )
)


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    """Every committed line, outside locks, in which the pattern is found."""
    return [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in committed_files()
        if path.name not in LOCKS
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_path_of_one_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_no_address_of_a_registry() -> None:
    assert lines_with(REGISTRY) == []


def test_scripts_may_be_executed() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in committed_files()
        if path.read_bytes()[:2] == b"#!" and not path.stat().st_mode & 0o111
    ]

    assert wrong == []
