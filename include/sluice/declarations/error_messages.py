"""Turns what pydantic found wrong into sentences that name file, line, key, what was got and what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sluice.declarations.declaration_files import Document, KeyPath
from sluice.errors import DeclarationError
from sluice.messages import SECRET_NAME, holds_secret

_MAY_BE_SECRET = ("engine", "options")
"""The key whose values are never repeated: Spark has secret settings with all kinds of names."""

_LONGEST_QUOTE = 60
_PLAIN_WORDS = {dict: "a mapping", list: "a list", type(None): "nothing"}
MANY_WORDS = 100
_ALIKE = 8
MOST_PROBLEMS = 100
"""How many problems of one file are put into words; who has corrected them sees the next."""

_OWN_SENTENCES = {"value_error": "error", "declared": "problem"}
"""Errors that our own validators raised, and where pydantic keeps their sentence."""

_MAPPING = "a mapping of keys to values"
_NUMBER = "a whole number"
_BOOLEAN = "`true` or `false`"
_TIME = "a time such as 2026-01-31T12:00:00Z"
_SIZE = "a size such as 512 MiB"
_NEEDED = {
    "literal_error": "{expected}",
    "string_type": "text",
    "string_pattern_mismatch": "text of the form {pattern}",
    "int_type": _NUMBER,
    "int_parsing": _NUMBER,
    "int_from_float": _NUMBER,
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number not below {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number not above {le}",
    "bool_type": _BOOLEAN,
    "bool_parsing": _BOOLEAN,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dict_type": _MAPPING,
    "tuple_type": "a list",
    "too_short": "at least {min_length} entry",
    "too_long": "at most {max_length} entries",
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "byte_size": _SIZE,
    "byte_size_unit": _SIZE,
}
"""What is allowed, by pydantic's type of error. Source: https://docs.pydantic.dev/latest/errors/validation_errors/"""


def declaration_errors(
    error: ValidationError, *, document: Document, model: type[BaseModel]
) -> tuple[DeclarationError, ...]:
    """One error for each key that is wrong, in the order of the file.

    Parameters
    ----------
    error: what pydantic found.
    document: the file that was validated.
    model: the model it was validated against.
    """
    problems: dict[KeyPath, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        if details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]:
            continue  # pydantic counts the valid entries only, and has named each invalid one
        problems.setdefault(_written_path(details, document), []).append(details)
    worded = [
        _worded(path, found, document=document, model=model) for path, found in islice(problems.items(), MOST_PROBLEMS)
    ]
    errors = sorted(worded, key=lambda problem: problem.location.line or 0)
    if (more := len(problems) - MOST_PROBLEMS) > 0:
        errors.append(DeclarationError(f"there are {more} more problems in this file.", location=document.location()))
    return tuple(errors)


def did_you_mean(word: str, allowed: Collection[str]) -> str:
    """The next step for a misspelt word, `Did you mean …?`; empty when nothing is close.

    Comparing every word with every word would take seconds when a thousand tables are missing at once; so from
    `MANY_WORDS` on only those that begin or end alike are looked at.
    """
    words = list(allowed)
    if len(words) > MANY_WORDS:
        words = [other for other in words if other[:_ALIKE] == word[:_ALIKE] or other[-_ALIKE:] == word[-_ALIKE:]]
    close = difflib.get_close_matches(word, words[:MANY_WORDS], n=1, cutoff=0.6)
    return f"Did you mean `{close[0]}`?" if close else ""


def key_text(path: KeyPath) -> str:
    """A path as a person writes it, for example `outputs.main.iceberg.keys[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _written_path(details: ErrorDetails, document: Document) -> KeyPath:
    """The path in the file: pydantic's also names branches of unions, and `[key]` for the name of a mapping's entry."""
    path: KeyPath = ()
    for part in details["loc"]:
        if (*path, part) in document.lines:
            path = (*path, part)
    if details["type"] == "missing":
        return (*path, details["loc"][-1])
    return (*path, *details.get("ctx", {}).get("at", ()))


def _worded(
    path: KeyPath, found: list[ErrorDetails], *, document: Document, model: type[BaseModel]
) -> DeclarationError:
    first = found[0]
    if first["type"] == "extra_forbidden":
        sentence, next_step = _unknown_key(path, model)
    elif first["type"] == "missing":
        sentence, next_step = _missing_key(path, model)
    else:
        where = f"`{key_text(path)}`: " if path else ""
        sentence, next_step = f"{where}{_demand(found)}{_got(path, first, document)}.", _nearest_choice(first)
    return DeclarationError(sentence, location=document.location(path), next_step=next_step)


def _unknown_key(path: KeyPath, model: type[BaseModel]) -> tuple[str, str]:
    allowed = sorted(field for part in _models_at(model, path[:-1]) for field in part.model_fields)
    key = str(path[-1])
    sentence = f"`{key_text(path)}`: unknown key `{key}`; allowed here: {', '.join(allowed)}."
    return sentence, did_you_mean(key, allowed)


def _missing_key(path: KeyPath, model: type[BaseModel]) -> tuple[str, str]:
    parent = f"`{key_text(path[:-1])}`" if len(path) > 1 else "the declaration"
    fields = [part.model_fields[str(path[-1])] for part in _models_at(model, path[:-1])]
    meaning = next((field.description for field in fields if field.description), None)
    return f"{parent} lacks the key `{path[-1]}`{f' ({meaning})' if meaning else ''}.", f"Add `{path[-1]}`."


def _demand(found: list[ErrorDetails]) -> str:
    """What is allowed, in words of our own where pydantic's speak of Python; the branches of a union as a choice."""
    sentences = [str(details["ctx"][kept]) for details in found if (kept := _OWN_SENTENCES.get(details["type"]))]
    if sentences:
        return sentences[0]
    needed = [
        _NEEDED[details["type"]].format_map(details.get("ctx", {})) for details in found if details["type"] in _NEEDED
    ]
    if needed:
        return f"needs {' or '.join(dict.fromkeys(needed))}".replace("'", "")
    return found[0]["msg"][:1].lower() + found[0]["msg"][1:]


def _got(path: KeyPath, details: ErrorDetails, document: Document) -> str:
    """What was got, cut short; nothing of what may be a secret, and of a mapping only when one was not wanted."""
    if any(SECRET_NAME.search(str(part)) for part in path) or path[:2] == _MAY_BE_SECRET:
        return ", got something that is not repeated here"
    given = document.value(path) if details["type"] == "declared" else details["input"]
    if isinstance(given, BaseModel | dict | list) and details["type"] in _OWN_SENTENCES:
        return ""
    if isinstance(given, str) and holds_secret(given):
        return ", got something that is not repeated here"
    text = _PLAIN_WORDS.get(type(given)) or (str(given).lower() if isinstance(given, bool) else repr(given))
    return f", got {text if len(text) <= _LONGEST_QUOTE else f'{text[:_LONGEST_QUOTE]}…'}"


def _nearest_choice(details: ErrorDetails) -> str:
    if details["type"] != "literal_error":
        return ""
    choices = re.findall(r"'([^']*)'", details["ctx"]["expected"])
    return did_you_mean(str(details["input"]), choices)


def _models_at(model: type[BaseModel], path: KeyPath) -> tuple[type[BaseModel], ...]:
    """The models that a value at `path` may be; none when the path leaves what is modelled."""
    annotations: list[Any] = [model]
    for part in path:
        annotations = [inner for annotation in annotations for inner in _step(annotation, part)]
    return tuple(found for annotation in annotations for found in _models_in(annotation))


def _step(annotation: Any, part: str | int) -> Iterator[Any]:
    """What lies one key below a value of this type."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field: FieldInfo | None = annotation.model_fields.get(str(part))
        if field is not None:
            yield field.annotation
    elif origin in (Union, UnionType):
        for choice in inner:
            yield from _step(choice, part)
    elif origin is Annotated:
        yield from _step(inner[0], part)
    elif origin is dict:
        yield inner[1]
    elif origin is tuple:
        yield inner[0]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated):
        for choice in get_args(annotation):
            yield from _models_in(choice)
