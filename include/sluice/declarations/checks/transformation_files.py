"""Looks at a transformation's file without executing it: does the function exist, and does it take the inputs?"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.declarations.declaration_files import LARGEST_CODE_BYTES, KeyPath, UnreadableFileError, read_bounded
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.sql_text import query_problem
from sluice.errors import DeclarationError
from sluice.messages import Location, one_line, unshowable_character


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    """What a Python file defines at its top. syntax_error: why it could not be read."""

    functions: Mapping[str, ast.FunctionDef]
    syntax_error: SyntaxError | None = None


class TransformationFiles:
    """Reads each file once, however many streams it serves."""

    def __init__(self) -> None:
        self._modules: dict[Path, _Module] = {}

    def problems(self, stream: LoadedStream) -> Iterator[DeclarationError]:
        """What is wrong with a stream's transformation, and with the functions of its outputs."""
        transformation = stream.declaration.transformation
        if transformation.sql is not None:
            yield from _query_problems(stream, transformation.sql)
        else:
            inputs = frozenset(stream.declaration.inputs)
            yield from self._function_problems(
                stream,
                ("transformation", "python"),
                transformation.python or "",
                signature_problem=lambda function: _signature_problem(function, inputs=inputs),
                next_step="A function's parameters are the stream's inputs, by name.",
            )
        for name, declared in stream.declaration.outputs.items():
            if declared.python is not None:
                yield from self._function_problems(
                    stream,
                    ("outputs", name, "python", "function"),
                    declared.python.function,
                    signature_problem=_sink_signature_problem,
                    next_step="An output's function takes the rows and the batch's key.",
                )

    def _function_problems(
        self,
        stream: LoadedStream,
        path: KeyPath,
        reference: str,
        *,
        signature_problem: Callable[[ast.FunctionDef], str],
        next_step: str,
    ) -> Iterator[DeclarationError]:
        file_name, _, name = reference.partition(":")
        file, key, location = stream.folder / file_name, key_text(path), stream.location(path)
        if not file.exists():
            yield from _absence(stream, path, file_name)
            return
        module = self._module(file)
        if (mistake := module.syntax_error) is not None:
            where = Location(file=file, line=mistake.lineno)
            yield DeclarationError(f"`{key}`: {where} is not Python: {one_line(str(mistake.msg))}.", location=location)
        elif name not in module.functions:
            yield DeclarationError(
                f"`{key}`: {file.name} has no function {name}; it has {', '.join(module.functions) or 'none'}.",
                location=location,
                next_step=did_you_mean(name, module.functions),
            )
        elif problem := signature_problem(module.functions[name]):
            where = Location(file=file, line=module.functions[name].lineno)
            yield DeclarationError(
                f"`{key}`: the function {name} in {where} {problem}.", location=location, next_step=next_step
            )

    def _module(self, file: Path) -> _Module:
        if file not in self._modules:
            self._modules[file] = _read_module(file)
        return self._modules[file]


def _query_problems(stream: LoadedStream, file_name: str) -> Iterator[DeclarationError]:
    """What keeps the file of a query from being one query; the query itself is not analysed."""
    path: KeyPath = ("transformation", "sql")
    file = stream.folder / file_name
    if not file.exists():
        yield from _absence(stream, path, file_name)
        return
    try:
        text = read_bounded(file, most_bytes=LARGEST_CODE_BYTES).decode("utf-8-sig")
        problem = query_problem(text)
        if problem is None and (character := unshowable_character(text)) is not None:
            problem = f"holds {character}, a character that no query has"
    except UnreadableFileError as error:
        problem = f"cannot be used: {error}"
    except UnicodeDecodeError:
        problem = "is not UTF-8 text"
    if problem is not None:
        yield DeclarationError(
            f"`{key_text(path)}`: {file_name} {problem}.",
            location=stream.location(path),
            next_step="Write one query, without a second statement.",
        )


def _absence(stream: LoadedStream, path: KeyPath, file_name: str) -> Iterator[DeclarationError]:
    file = stream.folder / file_name
    if not file.exists():
        yield DeclarationError(
            f"`{key_text(path)}`: there is no file {file_name} beside the declaration.",
            location=stream.location(path),
            next_step=f"Create {file}, or correct the name.",
        )


def _read_module(file: Path) -> _Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a user's file; Python warns where it imports the file
            tree = ast.parse(read_bounded(file, most_bytes=LARGEST_CODE_BYTES), filename=str(file))
    except SyntaxError as error:
        return _Module(functions={}, syntax_error=error)
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte; nesting too deep for Python's parser
        return _Module(functions={}, syntax_error=SyntaxError(str(error) or type(error).__name__))
    return _Module(functions={node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)})


def _signature_problem(function: ast.FunctionDef, *, inputs: frozenset[str]) -> str:
    """Why the function cannot be called with the inputs by name; empty when it can."""
    arguments = function.args
    if arguments.posonlyargs:
        return f"takes {arguments.posonlyargs[0].arg} by position only, and inputs are passed by name"
    named = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
    with_default = len(arguments.defaults)
    required = {argument.arg for argument in arguments.args[: len(arguments.args) - with_default]}
    required |= {
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    }
    if missing := sorted(inputs - set(named)) if arguments.kwarg is None else []:
        return f"has no parameter for the input {', '.join(missing)}"
    if foreign := sorted(required - inputs):
        return f"needs {', '.join(foreign)}, and the stream has no such input; it has {', '.join(sorted(inputs))}"
    return ""


def _sink_signature_problem(function: ast.FunctionDef) -> str:
    """Why the function cannot be called with rows and a batch's key, by position; empty when it can."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if any(default is None for default in arguments.kw_defaults):
        return "needs a parameter by name, and it is called with two values by position"
    if len(positional) - len(arguments.defaults) > 2 or (len(positional) < 2 and arguments.vararg is None):
        return f"takes {len(positional)} values, and it is called with two"
    return ""
