"""Every `sluice …` that a message, a guide or a DAG's document names exists: family, verb, options, arguments."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from tests.architecture.source_modules import ROOT, source_modules
from typer import Context
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from sluice.cli.app import FAMILIES

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BETWEEN_BACKTICKS = re.compile(r"(?<!`)`sluice (?P<words>[^`]+)`(?!`)")
LINE_OF_A_BLOCK = re.compile(r"^(?:\$ )?sluice (?P<words>\S.*?)(?:\s+#.*)?$", re.MULTILINE)
PLACEHOLDER = "NAME"

GROWING = ("…", "...")
"""What stands for the rest of a command."""


def commands_in(text: str) -> Iterator[str]:
    """The words after `sluice` of each command in a text; one that is broken over two lines is joined."""
    for found in BETWEEN_BACKTICKS.finditer(text):
        yield " ".join(found["words"].split())
    for block in re.findall(r"^```[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for found in LINE_OF_A_BLOCK.finditer(block):
            yield found["words"]


def texts_of(tree: ast.Module) -> Iterator[str]:
    """Every text of a module; what is filled in when it runs becomes a name."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values)  # type: ignore[misc]  # the constants of an f-string are texts
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield re.sub(r"\{\w*\}", PLACEHOLDER, node.value)


@cache
def named_commands() -> tuple[tuple[str, str], ...]:
    """The place and the words of each command that is named anywhere."""
    named = [(str(page.relative_to(ROOT)), words) for page in DOCUMENTS for words in commands_in(page.read_text())]
    for module in source_modules():
        named += [(module.place, words) for text in texts_of(module.tree) for words in commands_in(text)]
    return tuple(named)


@cache
def family(name: str) -> TyperCommand | TyperGroup | None:
    """A family of commands, loaded; none when there is no such family."""
    return next((one.load() for one in FAMILIES if one.name == name), None)


def problem_of(words: str) -> str:
    """What is wrong with a command; empty when it can be typed."""
    parts = [part for part in _parts(words) if part not in GROWING]
    if not parts or parts[0] == "--help":
        return ""
    command, rest = family(parts[0]), parts[1:]
    if command is None:
        return f"there is no `sluice {parts[0]}`"
    if not isinstance(command, TyperGroup) or not rest or rest[0].startswith("-"):
        return _problem_of_arguments(command, rest)
    verbs = _alternatives(rest)
    unknown = [verb for verb in verbs if verb not in command.commands and verb != PLACEHOLDER]
    if unknown:
        return f"`sluice {parts[0]}` has no {', '.join(unknown)}"
    if len(verbs) > 1 or verbs == [PLACEHOLDER]:
        return ""
    return _problem_of_arguments(command.get_command(Context(command), verbs[0]), rest[1:])


def _parts(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError:  # an apostrophe in prose
        return words.split()


def _alternatives(parts: list[str]) -> list[str]:
    """The verbs of `start | stop | restart`, or the only one."""
    verbs = [parts[0]]
    for bar, verb in zip(parts[1::2], parts[2::2], strict=False):
        if bar != "|":
            break
        verbs.append(verb)
    return verbs


def _problem_of_arguments(command: Any, given: list[str]) -> str:
    options = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts)}
    arguments = [one for one in command.params if isinstance(one, TyperArgument)]
    positional, left = 0, list(given)
    while left:
        word = left.pop(0).strip("[]")
        if not word.startswith("-"):
            positional += 1
            continue
        option = options.get(word.partition("=")[0])
        if option is None and word != "--help":
            return f"`{command.name}` has no option {word}"
        if isinstance(option, TyperOption) and not option.is_flag and "=" not in word and left:
            left.pop(0)
    most = sum(one.nargs for one in arguments) if all(one.nargs > 0 for one in arguments) else None
    return f"`{command.name}` takes {most} arguments" if most is not None and positional > most else ""


def test_every_named_command_exists() -> None:
    assert len(named_commands()) > 100
    assert {place.partition("/")[0] for place, _ in named_commands()} >= {"README.md", "docs", "include", "plugins"}

    wrong = sorted(
        {f"{place}: `sluice {words}`: {found}" for place, words in named_commands() if (found := problem_of(words))}
    )

    assert wrong == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("stream show NAME", ""),
        ("stream start | stop | restart", ""),
        ("stream events NAME --since '2 hours' --limit 50", ""),
        ("stream …", ""),
        ("table create", ""),
        ("flow show NAME", "there is no `sluice flow`"),
        ("stream rollback NAME", "`sluice stream` has no rollback"),
        ("stream start | rollback", "`sluice stream` has no rollback"),
        ("stream show NAME --since '2 hours'", "`show` has no option --since"),
        ("stream show NAME OTHER", "`show` takes 1 arguments"),
    ],
)
def test_a_command_that_cannot_be_typed_is_found(words: str, problem: str) -> None:
    assert problem_of(words) == problem
