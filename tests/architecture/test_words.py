"""User-facing text uses plain words: messages, help, docstrings and comments of the code, README and docs."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.architecture.committed_files import committed_files
from tests.architecture.source_modules import ROOT

WORDS_NOT_TO_USE = {
    r"tells?|told|telling|untold": "report, record, log, show; unknown",
    r"wish(?:es|ed|ing)?": "desired state, request",
    r"nobody": "there is no …, without …",
    r"anew": "again, restart, recreate",
    r"ails|ailing": "is unhealthy, fails, stalls",
    r"vanish(?:es|ed|ing)?": "disappear, exit, is gone",
    r"forg(?:ive|ives|iven|iving|ave)": "reset the count; allowed lateness",
    r"bears": "waits, continues for at most …",
    r"without a word": "without a message, silently, without reporting a status",
    r"sound": "valid, consistent",
    r"of before": "previous, earlier",
    r"upkeep": "maintenance",
    r"(?:pass|passes|passed|passing) over": "skip",
    r"(?:go|goes|going|gone|went) on": "continue, run, is under way",
    r"(?:give|gives|gave|given|giving) way": "end, yield",
    r"(?:stand|stands|stood) against": "block, is blocked by",
    r"is none of an?": "is not a …",
    r"misfits?": "orphaned run, mismatch",
    r"are apart": "is partition-aligned",
}
"""Words of a private dialect, as whole words, with those to write instead. Names with underscores are no words."""

WORDS = re.compile(r"\b(?:" + "|".join(WORDS_NOT_TO_USE) + r")\b", re.IGNORECASE)

NAMES_NOT_TO_USE = {"misfit", "misfits", "standing", "wish", "wished"}
"""Parts of names, between underscores and capitals, of the same dialect."""

FOLDERS = ("dags", "docs", "include", "jobs", "plugins")

SINGLE_FILES = ("README.md", "Makefile", "Dockerfile", "docker-compose.yaml", "pyproject.toml")

EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "docs/decisions/0031-group-the-code-into-rooms-by-domain.md": ("upkeep",),  # names the earlier packages
    "include/sluice/stack/unprivileged.py": ("nobody",),  # a user of the machine
}
"""For each file the words that stay there; the reason is a comment beside them."""


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """The texts that a person reads, of files that may have such words, with the place of each."""
    return tuple(
        (path.relative_to(ROOT).as_posix(), text)
        for path in committed_files()
        if path.relative_to(ROOT).parts[0] in (*FOLDERS, *SINGLE_FILES) and _may_have_bad_words(path)
        for text in _texts_of(path)
    )


def _may_have_bad_words(path: Path) -> bool:
    """A quick look at the whole file: to take the texts out of all of them would take seconds."""
    return WORDS.search(" ".join(path.read_text().split())) is not None


def _texts_of(path: Path) -> Iterator[str]:
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT) or "FSTRING" in tokenize.tok_name[token.type]:
                yield token.string
    else:
        yield path.read_text()


def bad_words() -> Iterator[tuple[str, str]]:
    """Every word that is not to be used, with its file."""
    for place, text in texts():
        for found in WORDS.finditer(" ".join(text.split())):
            yield place, found[0].lower()


def instead_of(word: str) -> str:
    """The words to write in the place of one that is not to be used."""
    return next(better for bad, better in WORDS_NOT_TO_USE.items() if re.fullmatch(bad, word, re.IGNORECASE))


def test_texts_use_plain_words() -> None:
    wrong = [
        f"{place}: {word}; write: {instead_of(word)}"
        for place, word in bad_words()
        if word not in EXCEPTIONS.get(place, ())
    ]

    assert wrong == []


def test_every_exception_is_needed() -> None:
    found = set(bad_words())

    assert [(place, word) for place, words in EXCEPTIONS.items() for word in words if (place, word) not in found] == []


def test_names_use_plain_words() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {token.string}"
        for path in committed_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in FOLDERS and _may_have_bad_names(path)
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.NAME and parts_of(token.string) & NAMES_NOT_TO_USE
    ]

    assert wrong == []


def _may_have_bad_names(path: Path) -> bool:
    text = path.read_text().lower()
    return any(name in text for name in NAMES_NOT_TO_USE)


def parts_of(name: str) -> set[str]:
    """The words of a name, in small letters."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def test_the_words_of_a_name_are_found() -> None:
    assert parts_of("_RefreshSight_is_standing") == {"refresh", "sight", "is", "standing"}
