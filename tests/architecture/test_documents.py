"""What README, guides and docstrings refer to exists: links, numbers of decisions, modules and files."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.committed_files import committed_files
from tests.architecture.source_modules import ROOT, source_modules

from sluice import stored_keys
from sluice.project_file import PROJECT_FILE

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#\s]*)(?:#[^)]*)?\)")

DECISION = re.compile(r"\b[Dd]ecisions? (?P<number>\d{4})\b")

FILE = re.compile(r"`(?P<path>(?:dags|include|jobs|plugins|tests|benchmarks|docs)/[\w./-]+)`")
"""A file or folder of the project between backticks; one with a placeholder (`…/<stream>.yaml`) is none."""

MODULE = re.compile(r"`(?P<name>(?:sluice|sluice_spark|sluice_airflow|tests|benchmarks)(?:\.\w+)+)`")
"""A dotted name between backticks: a module, or something that is defined in one."""

TABLES_OF_THE_LEDGER = {"sluice.batches", "sluice.leases", "sluice.runs"}
"""Dotted names in documents that are tables: the ledger's schema has the name of the package."""

KEYS = {key.rstrip(".") for name, key in vars(stored_keys).items() if name.isupper()}
"""Dotted names in documents that stand on users' tables."""


def words_of(path: Path) -> str:
    """The text of a file with its line breaks as spaces, so that what is broken over two lines is found."""
    return " ".join(path.read_text().split())


def is_module_or_member(name: str) -> bool:
    """Whether a dotted name is one of the project's modules, or a name that a module's text contains."""
    names = {module.name: module.path for module in source_modules()}
    parts = name.split(".")
    if parts[0] in ("tests", "benchmarks"):
        place = ROOT.joinpath(*parts)
        return place.is_dir() or place.with_suffix(".py").is_file()
    if name in names:
        return True
    owner = names.get(".".join(parts[:-1]))
    return owner is not None and re.search(rf"\b{parts[-1]}\b", owner.read_text()) is not None


def test_links_between_documents_resolve() -> None:
    wrong = [
        f"{document.relative_to(ROOT)} links {found['path']}"
        for document in DOCUMENTS
        for found in LINK.finditer(document.read_text())
        if found["path"] and not (document.parent / found["path"]).exists()
    ]

    assert wrong == []


def test_decisions_that_are_named_exist() -> None:
    numbers = {page.name[:4] for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}

    wrong = [
        f"{path.relative_to(ROOT)} names decision {found['number']}"
        for path in committed_files()
        if path.suffix in (".py", ".md", ".yaml", ".toml")
        for found in DECISION.finditer(words_of(path))
        if found["number"] not in numbers
    ]

    assert wrong == []


def test_files_that_documents_name_exist() -> None:
    wrong = [
        f"{document.relative_to(ROOT)} names {found['path']}"
        for document in DOCUMENTS
        for found in FILE.finditer(document.read_text())
        if not (ROOT / found["path"]).exists()
    ]

    assert wrong == []


def test_modules_that_documents_name_exist() -> None:
    wrong = [
        f"{document.relative_to(ROOT)} names {found['name']}"
        for document in DOCUMENTS
        for found in MODULE.finditer(document.read_text())
        if found["name"] not in TABLES_OF_THE_LEDGER | KEYS | {PROJECT_FILE} and not is_module_or_member(found["name"])
    ]

    assert wrong == []
