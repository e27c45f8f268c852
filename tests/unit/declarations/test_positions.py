"""Reading YAML: plain values, the line of every key, and what a declaration has no use for."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.declarations.declaration_files import read_document
from sluice.errors import DeclarationError

FILE = Path("a.stream.yaml")


def test_every_key_and_item_keeps_its_line() -> None:
    document = read_document(b"# a comment\na:\n  b: [x,\n     y]\n  1: {c: d}\n", file=FILE)
    assert document.content == {"a": {"b": ["x", "y"], 1: {"c": "d"}}}
    assert dict(document.lines) == {
        (): 1,
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "b", 0): 3,
        ("a", "b", 1): 4,
        ("a", 1): 5,
        ("a", 1, "c"): 5,
    }


def test_a_missing_key_is_located_at_its_nearest_parent() -> None:
    document = read_document(b"a:\n  b: 1\n", file=FILE)
    assert str(document.location(("a", "z", 0))) == "a.stream.yaml:1"
    assert str(document.location(("a", "b", "c"))) == "a.stream.yaml:2"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("NaN", "NaN"),
        ("1.5e-3", 0.0015),
        ("-7", -7),
        ("007", 7),
        ("'7'", "7"),
        ("true", True),
        ("True", "True"),
        ("null", None),
        ("~", None),
        ("", None),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    assert read_document(f"key: {text}".encode(), file=FILE).content == {"key": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "a.stream.yaml:1: the file is empty."),
        (b"# only a comment\n", "a.stream.yaml:1: the file is empty."),
        (b"- a", "a.stream.yaml:1: a declaration is a mapping of keys to values, got a list."),
        (b"a", "a.stream.yaml:1: a declaration is a mapping of keys to values, got a single value."),
        (b"a: 1\nb: 2\na: 3", "a.stream.yaml:3: the key `a` is written twice, first in line 1. Keep one of the two."),
        (b"a: &x [1]\nb: *x", "a.stream.yaml:2: the alias `*x` is not allowed. Write the value out."),
        (b"a: &x [*x]", "a.stream.yaml:1: the alias `*x` is not allowed. Write the value out."),
        (
            b"a:\n  - !!python/object/apply:os.system [ls]",
            "a.stream.yaml:2: the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed. "
            "Write a plain value.",
        ),
        (b"a: !!int x", "a.stream.yaml:1: the tag tag:yaml.org,2002:int is not allowed. Write a plain value."),
        (b"a: ! x", "a.stream.yaml:1: the tag ! is not allowed. Write a plain value."),
        (b"? [a]\n: b", "a.stream.yaml:1: a key is a word or a whole number. Quote the key if it is text."),
        (b"true: b", "a.stream.yaml:1: a key is a word or a whole number. Quote the key if it is text."),
        (b"a: b\n---\nc: d", "a.stream.yaml:2: a second document begins here. Keep one document in a file."),
        (
            b"a: b\n\tc: d",
            "a.stream.yaml:2: this is not YAML: found a tab character that violates indentation. "
            "Correct the line, or quote the value.",
        ),
        (
            b"a: {{ b }}",
            "a.stream.yaml:1: a key is a word or a whole number. Quote the key if it is text.",
        ),
        (
            b"a: \xff",
            "a.stream.yaml:1: this is not YAML: unacceptable character #x00ff: invalid leading UTF-8 octet. "
            "Save the file as UTF-8 text without control characters.",
        ),
        (b"a: " + b"[" * 60 + b"]" * 60, "a.stream.yaml:1: values are nested deeper than 50 levels."),
    ],
)
def test_what_a_declaration_has_no_use_for_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(DeclarationError) as refusal:
        read_document(text, file=FILE)
    assert str(refusal.value) == message


@pytest.mark.parametrize("depth", [1_000, 500_000])
def test_the_deepest_nesting_is_refused_and_does_not_exhaust_the_stack(depth: int) -> None:
    # libyaml's tree of nodes ended the process with SIGSEGV at 200,000 levels.
    with pytest.raises(DeclarationError):
        read_document(b"a: " + b"[" * depth + b"]" * depth, file=FILE)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    with suppress(DeclarationError):
        assert read_document(text, file=FILE).lines[()] == 1
