"""Decodes values so that none of them can end or stall the process that asks for it.

A fault in the compiled code of a decoder ends its process, and an endless loop there holds it for good. `decode_within`
ends the process after a time, with the traceback on its standard error, so that Spark repeats the task. The repetition
uses `decode_apart`: child processes decode the values, piece by piece, and the value on which a child dies again and
again is rejected.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import BinaryIO, TypeVar

import pyarrow as pa

from sluice.record_values.arrow_columns import DecodedBlock
from sluice.record_values.rejection import Rejection, RejectionKind
from sluice.record_values.schemas import DecodingLimits

_log = logging.getLogger(__name__)

Values = Sequence[bytes | None]
Decode = Callable[[Values], DecodedBlock]
Decoded = TypeVar("Decoded")

_PIECE = 100
"""Values that a child decodes at a time: small enough to be decoded again one by one, which finds the one that ends the
child."""
_STANDARD_ERROR = 2
_OUT_OF_TIME = 1
"""The exit status that `faulthandler` gives a process that it ends."""


def decode_within(decode: Callable[[Values], Decoded], values: Values, limits: DecodingLimits) -> Decoded:
    """Decode a block of values. This process ends if that takes too long."""
    with _ended_after(limits.seconds_of(values)):
        return decode(values)


def decode_apart(decode: Decode, values: Values, limits: DecodingLimits) -> DecodedBlock:
    """Decode a block of values in child processes. A value on which they die is rejected.

    Raises
    ------
    Exception: what `decode` raises.
    RuntimeError: when a child dies even without a value.
    """
    pieces = [values[begin : begin + _PIECE] for begin in range(0, len(values), _PIECE)]
    return _joined(list(_blocks(decode, pieces, limits))) if pieces else decode(values)


def _blocks(decode: Decode, pieces: Sequence[Values], limits: DecodingLimits) -> Iterator[DecodedBlock]:
    """Decode pieces one after the other; a new child continues behind the piece on which one died."""
    done = 0
    while done < len(pieces):
        found, death = _of_child(decode, pieces[done:], limits)
        yield from found
        done += len(found)
        if death is None:
            continue
        if len(pieces[done]) > 1:
            yield from _blocks(decode, [[value] for value in pieces[done]], limits)
        else:
            yield _decoded_alone(decode, pieces[done], limits, death)
        done += 1


def _decoded_alone(decode: Decode, value: Values, limits: DecodingLimits, death: str) -> DecodedBlock:
    """Try one value, on which a child has died, again and again."""
    for _ in range(limits.tries - 1):
        found, again = _of_child(decode, [value], limits)
        if again is None:
            return found[0]
        death = again
    nothing, died_without = _of_child(decode, [[None]], limits)
    if died_without is not None:
        raise RuntimeError(f"Values cannot be decoded: without any value, the process {died_without}.")
    detail = f"it {death} (tries: {limits.tries})"
    rejection = Rejection(kind=RejectionKind.DECODER_ENDED, detail=detail, quotes_data=False)
    _log.warning("a value of %d bytes is rejected: %s", len(value[0] or b""), rejection.sentence)
    return DecodedBlock(columns=nothing[0].columns, rejections={0: rejection})


def _of_child(
    decode: Decode, pieces: Sequence[Values], limits: DecodingLimits
) -> tuple[list[DecodedBlock], str | None]:
    """The blocks that a child has decoded, in order, and how it died; None when it has decoded all pieces."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: all others are idle
        child = os.fork()
    if child == 0:
        os.close(reading)
        _be_child(decode, pieces, limits, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        found = list(_answers(answers))
    _, status = os.waitpid(child, 0)
    if found and isinstance(found[-1], Exception):
        raise found[-1]
    blocks = [one for one in found if isinstance(one, DecodedBlock)]
    return blocks, None if len(blocks) == len(pieces) else _death(status, limits)


def _be_child(decode: Decode, pieces: Sequence[Values], limits: DecodingLimits, writing: int) -> None:
    """Write the block of each piece, or the error, and end this process without what Python does at an end."""
    try:
        with os.fdopen(writing, "wb") as answers:
            for piece in pieces:
                try:
                    answer: object = decode_within(decode, piece, limits)
                except Exception as error:  # noqa: BLE001  # it is raised by the parent
                    answer = error
                pickle.dump(answer, answers)
                answers.flush()
    finally:
        os._exit(0)


def _answers(answers: BinaryIO) -> Iterator[object]:
    while True:
        try:
            yield pickle.load(answers)  # noqa: S301  # our own child wrote it
        except (EOFError, pickle.UnpicklingError):  # the end, or it died while it wrote
            return


def _death(status: int, limits: DecodingLimits) -> str:
    if os.WIFSIGNALED(status):
        return f"died of {signal.Signals(os.WTERMSIG(status)).name}"
    code = os.waitstatus_to_exitcode(status)
    return f"took longer than {limits.seconds:g} seconds" if code == _OUT_OF_TIME else f"ended with status {code}"


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End this process unless the block ends in time. The watch is a thread that no compiled code can keep waiting."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STANDARD_ERROR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _joined(blocks: Sequence[DecodedBlock]) -> DecodedBlock:
    begins = accumulate((len(block.columns[0]) if block.columns else 0 for block in blocks), initial=0)
    columns = [pa.concat_arrays(list(parts)) for parts in zip(*(block.columns for block in blocks), strict=True)]
    rejections = {
        begin + index: rejection
        for begin, block in zip(begins, blocks, strict=False)
        for index, rejection in block.rejections.items()
    }
    undeclared = sum((Counter(block.undeclared) for block in blocks), Counter[str]())
    return DecodedBlock(columns=columns, rejections=rejections, undeclared=undeclared)
