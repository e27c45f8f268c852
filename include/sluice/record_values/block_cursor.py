"""Walks over the bytes of a block of values: a position for each value, and one step for all values at once.

A step reads the same field of every value with a few calls of numpy, instead of a few calls of Python for each value.
What such a step cannot decide makes a value *doubtful*; what was read of it is not used, and it is decoded by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Octets: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]

_FRONT, _BACK = 16, 32
"""Zeros before and behind the values: what is read near an end is inside of the memory."""

_LONG_LIST, _FEW_LISTS = 16, 64
_MOST_STEPS = 2_000
"""A step over the elements of lists costs about the same for one list and for many. Of lists with more elements than a
few, single ones are therefore left to be decoded one by one; and so are all when a block has taken many steps."""

_CONTINUED = np.uint64(0x8080_8080_8080_8080)


@dataclass(slots=True, kw_only=True)
class BlockContent:
    """The bytes of a block, and what was found out about its values.

    octets, words: the same memory. is_doubtful: of each value, whether it has to be decoded by itself.
    undeclared: fields that no column takes, each with the values that have it. steps: over the elements of lists.
    """

    octets: Octets
    words: Words
    is_doubtful: Flags
    undeclared: list[tuple[str, Numbers]] = field(default_factory=list)
    steps: int = 0

    def takes_step(self, lists: int, *, element: int) -> bool:
        """Whether the next element of so many lists is read at once; element: its number."""
        self.steps += 1
        return self.steps <= _MOST_STEPS and (element < _LONG_LIST or lists >= _FEW_LISTS)

    def beside(self, octets: Octets) -> tuple[BlockContent, int]:
        """Other bytes of the same values, and the position of the first one."""
        padded = _padded(octets)
        return replace(self, octets=padded, words=padded.view(np.uint64)), _FRONT

    def words_at(self, at: Numbers) -> Words:
        """The eight bytes from each position on, the first one in the lowest bits."""
        index = at >> 3
        shift = ((at & 7) << 3).view(np.uint64)
        low, high = self.words.take(index, mode="clip"), self.words.take(index + 1, mode="clip")
        return (low >> shift) | (high << (64 - shift))

    def gathered(self, starts: Numbers, lengths: Numbers) -> tuple[npt.NDArray[np.int32], Octets]:
        """The bytes of many places, one behind the other, and where those of each begin; the last is the end."""
        offsets = np.zeros(len(starts) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        index = np.repeat((starts - offsets[:-1]).astype(np.int32), lengths)
        index += np.arange(len(index), dtype=np.int32)
        return offsets, self.octets.take(index, mode="clip")


@dataclass(slots=True, kw_only=True)
class BlockCursor:
    """A position in each of some values of a block.

    at, end: the next byte of each, and the one behind its last. rows: which values of the block they are.
    """

    content: BlockContent
    at: Numbers
    end: Numbers
    rows: Numbers

    def __len__(self) -> int:
        return len(self.at)

    def doubt(self, are_doubtful: Flags) -> None:
        """Have some of the values decoded by themselves."""
        if are_doubtful.any():
            self.content.is_doubtful[self.rows[are_doubtful]] = True

    def doubt_at(self, places: Numbers) -> None:
        """The same for the values at some places."""
        self.content.is_doubtful[self.rows[places]] = True

    def part(self, places: Numbers | None) -> BlockCursor:
        """The cursor of some of the values; of all for None."""
        if places is None:
            return self
        return replace(self, at=self.at[places], end=self.end[places], rows=self.rows[places])

    def follow(self, places: Numbers | None, part: BlockCursor) -> None:
        """Continue where a part of the values has been read to."""
        if places is not None:
            self.at[places] = part.at

    def word(self, width: int) -> Words:
        """The next bytes of each value, at most eight, which are not cut out of what follows them."""
        found = self.content.words_at(self.at)
        self.at = self.at + width
        return found

    def varints(self) -> Words:
        """Numbers of seven bits a byte, the lowest bits first; the highest bit says that another byte follows.

        Source: https://protobuf.dev/programming-guides/encoding/#varints; Avro's are the same.
        """
        word = self.content.words_at(self.at)
        stops = ~word & _CONTINUED
        through = stops ^ (stops - np.uint64(1))  # the bytes up to the one that is the last, all bits set
        self.at = self.at + (np.bitwise_count(through) >> 3)
        found = _joined(word & through)
        if (is_long := stops == 0).any():
            self._read_last_bits(found, np.flatnonzero(is_long))
        return found

    def _read_last_bits(self, found: Words, places: Numbers) -> None:
        """Read the ninth byte of some numbers, and the tenth, which has one bit only."""
        word = self.content.words_at(self.at[places])
        ninth, tenth = word & np.uint64(0xFF), (word >> np.uint64(8)) & np.uint64(0xFF)
        has_tenth = ninth >= 0x80
        found[places] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
        found[places] |= np.where(has_tenth, tenth << np.uint64(63), np.uint64(0))
        self.at[places] += 1 + has_tenth
        too_long = np.zeros(len(self), np.bool_)
        too_long[places] = has_tenth & (tenth > 1)
        self.doubt(too_long)

    def zigzags(self) -> Numbers:
        """Numbers with a sign, which is the lowest bit of a varint."""
        found = self.varints()
        return ((found >> np.uint64(1)) ^ (np.uint64(0) - (found & np.uint64(1)))).view(np.int64)

    def bounded(self, lengths: Numbers) -> Numbers:
        """The lengths, or zero for what is longer than the rest of its value, which is doubtful."""
        are_wrong = (lengths < 0) | (lengths > self.end - self.at)
        if not are_wrong.any():
            return lengths
        self.doubt(are_wrong)
        return np.where(are_wrong, 0, lengths)

    def inside(self, lengths: Numbers) -> BlockCursor:
        """The cursor of what has these lengths; this one continues behind it."""
        begin, self.at = self.at, self.at + lengths
        return replace(self, at=begin, end=self.at.copy())


def cursor_of(block: Any) -> BlockCursor:
    """The beginning of each value of an Arrow column of bytes; a null has no bytes."""
    length = len(block)
    _, places, values = block.buffers()
    offsets = np.frombuffer(places, np.int32, count=length + 1, offset=4 * block.offset).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    size = last - first
    octets = _padded(np.frombuffer(values, np.uint8, count=size, offset=first) if size else np.zeros(0, np.uint8))
    offsets += _FRONT - first
    content = BlockContent(octets=octets, words=octets.view(np.uint64), is_doubtful=np.zeros(length, np.bool_))
    return BlockCursor(content=content, at=offsets[:-1].copy(), end=offsets[1:].copy(), rows=np.arange(length))


def _padded(octets: Octets) -> Octets:
    padded = np.zeros((_FRONT + len(octets) + _BACK) // 8 * 8, np.uint8)
    padded[_FRONT : _FRONT + len(octets)] = octets
    return padded


def spread(values: npt.NDArray[Any], places: Numbers, length: int) -> npt.NDArray[Any]:
    """The values at their places, and zeros between them."""
    found = np.zeros(length, values.dtype)
    found[places] = values
    return found


def _joined(word: Words) -> Words:
    """The lower seven bits of each byte, without the gaps between them."""
    word = word & np.uint64(0x7F7F_7F7F_7F7F_7F7F)
    word = (word & np.uint64(0x007F_007F_007F_007F)) | ((word >> np.uint64(1)) & np.uint64(0x3F80_3F80_3F80_3F80))
    word = (word & np.uint64(0x0000_3FFF_0000_3FFF)) | ((word >> np.uint64(2)) & np.uint64(0x0FFF_C000_0FFF_C000))
    return (word & np.uint64(0x0FFF_FFFF)) | ((word >> np.uint64(4)) & np.uint64(0x00FF_FFFF_F000_0000))
