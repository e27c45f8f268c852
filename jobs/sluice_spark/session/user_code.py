"""Loads the Python functions of declarations."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from sluice.declarations.declaration_files import KeyPath
from sluice.declarations.error_messages import key_text
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import DeclarationError

_loading = threading.Lock()
"""Threads of one application may load the same module; a module must not find another one under its name meanwhile."""


def load_function(stream: LoadedStream, reference: str, *, path: KeyPath, role: str) -> Callable[..., Any]:
    """Load a function as part of a module that is pickled by value, because workers do not have the file on their path.

    Parameters
    ----------
    stream: the stream that declares the function.
    reference: `<file>.py:<function>`; the file is in the folder of the declaration.
    path: the key of the declaration, for errors.
    role: the role of the function, for the module's name.

    Raises
    ------
    DeclarationError: when the file cannot be loaded or has no such function.
    """
    file_name, _, name = reference.partition(":")
    file = stream.folder / file_name
    module_name = f"sluice_{role}_{stream.name}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise _wrong(stream, path, f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    with _loading:
        sys.modules[module_name] = module  # dataclasses look up their module here while it loads
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # whatever the user's file raises is reported with its location
            raise _wrong(stream, path, f"{file} cannot be loaded: {type(error).__name__}: {error}") from error
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # it has no types
    function = getattr(module, name, None)
    if not callable(function):
        raise _wrong(stream, path, f"{file} has no function {name}")
    found: Callable[..., Any] = function
    return found


def _wrong(stream: LoadedStream, path: KeyPath, problem: str) -> DeclarationError:
    return DeclarationError(f"`{key_text(path)}`: {problem}.", location=stream.location(path))
