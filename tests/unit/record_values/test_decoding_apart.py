"""A value on which a decoder dies, hangs or fails is rejected, and all others are decoded."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.declarations.value_declaration import ValueColumn
from sluice.errors import RegistryError
from sluice.record_values.arrow_columns import DecodedBlock
from sluice.record_values.decoding_apart import decode_apart, decode_within
from sluice.record_values.json_decoding import JsonBlockDecoder
from sluice.record_values.schemas import DecodingLimits

LIMITS = DecodingLimits(seconds=0.3, tries=2)
COLUMNS = (ValueColumn(name="id", type="long"), ValueColumn(name="tags", type="list<string>"))
DECODER = JsonBlockDecoder(COLUMNS)
POISON = b'{"id": 666}'


def decoding(on_poison: Callable[[], object]) -> Callable[[Sequence[bytes | None]], DecodedBlock]:
    """The decoder of JSON, which does something else when it meets poison."""

    def decode(values: Sequence[bytes | None]) -> DecodedBlock:
        if POISON in values:
            on_poison()
        return DECODER.decode(values)

    return decode


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _aborted() -> None:
    faulthandler.disable()  # pytest's, which would print all modules
    os.abort()


def _hung() -> None:
    while True:
        time.sleep(1)  # the decoder that never ends


@pytest.mark.parametrize(
    ("on_poison", "reason"),
    [
        pytest.param(_killed, "died of SIGKILL", id="killed"),
        pytest.param(_aborted, "died of SIGABRT", id="aborted"),
        pytest.param(lambda: os._exit(7), "ended with status 7", id="ended"),
        pytest.param(_hung, "took longer than 0.3 seconds", id="hung"),
    ],
)
def test_a_value_that_ends_its_decoder_is_rejected_alone(
    on_poison: Callable[[], object], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    values: list[bytes | None] = [b'{"id": %d, "tags": ["a"]}' % number for number in range(250)]
    values[0], values[130], values[200], values[249] = POISON, POISON, b"not JSON", None

    block = decode_apart(decoding(on_poison), values, LIMITS)

    poisoned = f"the process that decoded the value has ended: it {reason} (tries: 2)"
    assert [block.rejections.pop(place).sentence for place in (0, 130)] == [poisoned, poisoned]
    others = [None if value == POISON else value for value in values]
    whole = DECODER.decode(others)
    assert block.rejections == {place: why for place, why in whole.rejections.items() if place not in (0, 130)}
    assert [column.to_pylist() for column in block.columns] == [column.to_pylist() for column in whole.columns]
    assert [column.type for column in block.columns] == [column.type for column in whole.columns]


def test_a_value_whose_decoder_died_by_accident_is_decoded(tmp_path: Path) -> None:
    marks = tmp_path / "deaths"

    def die_twice() -> None:
        with marks.open("a") as file:
            file.write("x")
        if len(marks.read_text()) <= 2:
            _killed()

    block = decode_apart(decoding(die_twice), [b'{"id": 1}', POISON], LIMITS)

    assert block.rejections == {}
    assert block.columns[0].to_pylist() == [1, 666]


def test_no_value_is_blamed_when_every_process_dies() -> None:
    def decode(values: Sequence[bytes | None]) -> DecodedBlock:
        os._exit(1)

    with pytest.raises(RuntimeError, match="without any value, the process took longer"):
        decode_apart(decode, [b"{}"], LIMITS)


def test_an_error_of_the_decoder_is_raised_with_its_class() -> None:
    def fail() -> None:
        raise RegistryError("The registry says no.", next_step="Ask it.")

    with pytest.raises(RegistryError, match="The registry says no"):
        decode_apart(decoding(fail), [b"{}", POISON], LIMITS)


def test_a_block_without_values_has_typed_columns() -> None:
    block = decode_apart(DECODER.decode, [], LIMITS)
    assert [column.type for column in block.columns] == [pa.int64(), pa.list_(pa.string())]


def test_a_block_that_takes_too_long_ends_its_process_and_a_large_one_has_more_time() -> None:
    child = os.fork()
    if child == 0:
        os.close(2)  # the traceback
        decode_within(decoding(_hung), [POISON], LIMITS)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert LIMITS.seconds_of([bytes(2**25), None]) == pytest.approx(0.9)
