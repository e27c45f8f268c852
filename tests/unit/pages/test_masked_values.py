"""What is shown of a malformed value of a stream with masked columns: what is declared, unmasked and fits, alone."""

from __future__ import annotations

import base64
import gzip
import json
import random
import string
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from sluice.declarations.column_types import StructType, parse_column_type
from sluice.pages.masked_values import LONGEST_SEARCHED, MASK, masked_json, masked_line

MASKED = ("email", "address.street", "card.holder.name")
COLUMNS = StructType(
    tuple(
        (name, parse_column_type(kind))
        for name, kind in {
            "id": "long",
            "email": "string",
            "ok": "boolean",
            "at": "timestamptz",
            "day": "date",
            "price": "decimal(9, 2)",
            "city": "string",
            "raw": "binary",
            "key": "uuid",
            "address": "struct<street: string, zip: int>",
            "card": "struct<holder: struct<name: string, n: int>>",
            "counts": "map<string, int>",
            "parts": "list<struct<n: int, email: string>>",
        }.items()
    )
)
WHOLE = {"email": "ann@x.org", "address": {"street": "Elm"}, "card": {"holder": {"name": "Ann"}}}
MASKS = {"email": "••• (text)", "address": {"street": "••• (text)"}, "card": {"holder": {"name": "••• (text)"}}}

SHOWN = [
    ({"id": 1, "ok": True, "price": "1.50"}, {"id": 1, "ok": True, "price": "1.50"}),
    ({"at": "2026-01-31T10:00:00Z", "day": "2026-01-31"}, {"at": "2026-01-31T10:00:00Z", "day": "2026-01-31"}),
    ({"id": "x", "ok": 1, "city": 7}, {"id": "••• (text)", "ok": "••• (number)", "city": "••• (number)"}),
    ({"id": [1], "city": {"id": 1}}, {"id": ["••• (number)"], "city": {"id": "••• (number)"}}),
    ({"id": 2**63, "day": "2026-02-31"}, {"id": "••• (number)", "day": "••• (text)"}),
    ({"city": "Rye"}, {"city": "••• (text)"}),  # the masked columns are missing: a text may be one of theirs
    (WHOLE | {"city": "Rye"}, MASKS | {"city": "Rye"}),
    (WHOLE | {"city": "of Ann@x.org"}, MASKS | {"city": "••• (text)"}),
    (WHOLE | {"city": "Rye", "email": None}, MASKS | {"city": "••• (text)", "email": None}),
    (WHOLE | {"city": "Rye", "email": 7}, MASKS | {"city": "••• (text)", "email": "••• (number)"}),
    (WHOLE | {"raw": "QUJD"}, MASKS | {"raw": "••• (text)"}),
    ({"counts": {"a": 1}}, {"counts": {MASK: 1}}),
    (WHOLE | {"counts": {"a": 1, "b": "x"}}, MASKS | {"counts": {"a": 1, "b": "••• (text)"}}),
    ({"emailAddress": "ann", "e_mail": 1}, {"emailAddress": "••• (text)", "e_mail": "••• (number)"}),
    ({"Email": "ann", "ID": 1}, {"Email": "••• (text)", "ID": "••• (number)"}),
    ({"note": "ann", "ann@x.org": True}, {MASK: "••• (boolean)"}),
    ({"after": WHOLE | {"id": 1}}, {MASK: MASKS | {"id": "••• (number)"}}),
    ({"address": "Elm 5, Rye"}, {"address": "••• (text)"}),
    ({"address": {"street": ["Elm"], "zip": 5}}, {"address": {"street": "••• (list)", "zip": 5}}),
    (
        {"parts": [{"n": 1, "email": "ann"}, {"n": "x"}]},
        {"parts": [{"n": 1, "email": "••• (text)"}, {"n": "••• (text)"}]},
    ),
]

HIDDEN = [
    "",
    " ",
    "{",
    '{"email": "ann@x.org"',
    '{"email": "ann@x.org"} trailing',
    'data: {"id": 1}',
    "email=ann@x.org",
    '"ann@x.org"',
    '"{\\"id\\": 1}"',
    "17",
    "null",
    "[]",
    '[{"id": 1}]',
    "0x7B22656D61696C",
    "\ufeff{}",
    "[" * 100_000,
    '{"a":' * 10_000 + "1" + "}" * 10_000,
    '{"id": "' + "x" * LONGEST_SEARCHED + '"}',
]


@pytest.mark.parametrize(("sent", "shown"), SHOWN, ids=[json.dumps(sent)[:40] for sent, _ in SHOWN])
def test_a_value_is_shown_under_a_declared_unmasked_name_with_its_declared_type_alone(
    sent: Mapping[str, Any], shown: Mapping[str, Any]
) -> None:
    masked = masked_json(json.dumps(sent), COLUMNS, MASKED)

    assert masked.hidden_because == ""
    assert json.loads(masked.text) == shown


def test_the_digits_of_a_number_are_shown_as_they_were_sent() -> None:
    assert masked_json('{"price": 1.50, "id": 1, "id": 2}', COLUMNS, MASKED).text == (
        '{"price": 1.50, "id": "••• (number)", "id": "••• (number)"}'  # which one is meant is unknown
    )


def test_without_known_columns_names_and_types_are_shown() -> None:
    assert json.loads(masked_json('{"email": "ann", "id": 7}', StructType(()), ("email",)).text) == {
        "email": "••• (text)",
        "id": "••• (number)",
    }


def test_where_a_masked_number_is_not_at_its_place_no_number_is_shown() -> None:
    columns = StructType((("id", parse_column_type("long")), ("card", parse_column_type("long"))))

    assert (
        masked_json('{"id": 4111, "card": "x"}', columns, ("card",)).text
        == '{"id": "••• (number)", "card": "••• (text)"}'
    )
    assert masked_json('{"id": 1, "card": 4111}', columns, ("card",)).text == '{"id": 1, "card": "••• (number)"}'


def test_a_text_in_the_place_of_an_object_with_a_masked_field_is_not_shown_however_short_it_is() -> None:
    columns = StructType((("address", parse_column_type("string")),))

    assert masked_json('{"address": "7"}', columns, ("address.street",)).text == '{"address": "••• (text)"}'


@pytest.mark.parametrize("text", HIDDEN, ids=lambda text: text[:20] or "empty")
def test_a_value_that_is_no_json_object_is_hidden(text: str) -> None:
    masked = masked_json(text, COLUMNS, MASKED)

    assert masked.text == ""
    assert masked.hidden_because
    assert "@" not in masked.hidden_because


LINE = StructType(tuple(COLUMNS.fields[:7]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1,ann@x.org,true,2026-01-31T10:00Z,2026-01-31,1.50,Rye", "1,•••,true,2026-01-31T10:00Z,2026-01-31,1.50,•••"),
        ("ann@x.org,1,Rye,,,,", "•••,•••,•••,,,,"),
        ('x,"ann, of x",,,,"1,5",', "•••,•••,,,,•••,"),
        ('"{""email"": 1}",ann,,,,,', "•••,•••,,,,,"),
    ],
)
def test_of_a_line_the_fields_that_fit_are_shown_and_no_text(text: str, shown: str) -> None:
    assert masked_line(text, LINE, MASKED).text == shown


def test_of_a_line_nothing_is_shown_of_a_type_that_a_masked_column_has() -> None:
    columns = StructType(tuple((name, parse_column_type("long")) for name in ("id", "card")))

    assert masked_line("1,4111", columns, ("card",)).text == "•••,•••"
    assert masked_line("1,4111", columns, ("card.number",)).text == "1,•••", "of a column that has no such field"


def test_of_a_line_no_text_is_shown_even_if_no_masked_column_is_one() -> None:
    columns = StructType((("card", parse_column_type("long")), ("city", parse_column_type("string"))))

    assert masked_line("4111,Rye", columns, ("card",)).text == "•••,•••"
    as_bytes = StructType((columns.fields[0], ("raw", parse_column_type("binary"))))
    assert masked_line("4111,NDExMQ==", as_bytes, ("card",)).text == "•••,•••"


@pytest.mark.parametrize(
    "text",
    ["", "1,ann", "1,2,3,4,5,6,7,8", '1,"ann,Elm', "1,2,3,4,5,6,7\n1,2,3,4,5,6,7", f"1,{'x' * LONGEST_SEARCHED},,,,,"],
    ids=lambda text: text[:20],
)
def test_a_line_with_other_fields_is_hidden(text: str) -> None:
    masked = masked_line(text, LINE, MASKED)

    assert masked.text == ""
    assert masked.hidden_because


_ENCODINGS: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    str.upper,
    lambda text: text[::-1],
    lambda text: " ".join(text),
    lambda text: "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in text),
    lambda text: base64.b64encode(text.encode()).decode(),
    lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
    lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    lambda text: base64.encodebytes(text.encode()).decode(),
    lambda text: base64.b64encode(base64.b64encode(text.encode())).decode(),
    lambda text: base64.b85encode(text.encode()).decode(),
    lambda text: base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode(),
    lambda text: text.encode().hex(),
    lambda text: "0x" + text.encode().hex().upper(),
    lambda text: quote(text, safe=""),
    lambda text: urlencode({"email": text}),
    lambda text: f"<email>{text}</email>",
    lambda text: json.dumps({"email": text}),
    lambda text: json.dumps(json.dumps({"email": text})),
    lambda text: base64.b64encode(json.dumps({"email": text}).encode()).decode(),
    lambda text: f"\ufeff\x00{text}\u200b",
    lambda text: "".join(f"\\u{ord(letter):04x}" for letter in text),
)
_NAMES = (
    *(
        "emailAddress",
        "e_mail",
        "email ",
        "\ufeffemail",
        "e\u200bmail",
        "".join(chr(ord(letter) + 0xFEE0) for letter in "email"),
        "EMAIL",
        "mail",
        "note",
        "x",
        "",
    ),
    *("address.street", "address_street", "street", "id", "ok", "at", "day", "price", "city", "raw", "key", "counts"),
    *("parts", "card", "address"),
)


def _way(seed: int) -> tuple[tuple[str, ...], str]:
    """A masked value that was written in some way into a record: what must not be shown, and the record."""
    draw = random.Random(seed)  # noqa: S311  # cases, no secrets
    secret = "".join(draw.choices(string.ascii_lowercase, k=9)) + "@" + draw.choice(["planted.org", "Planted.Example"])
    written = draw.choice(_ENCODINGS)(secret)
    name = draw.choice(_NAMES)
    part: Any = draw.choice(
        (
            lambda: written,
            lambda: [written, None],
            lambda: [[written]],
            lambda: {written: draw.choice([1, None, True, "x"])},
            lambda: {"name": "email", "value": written},
            lambda: {"columns": ["id", "email"], "row": [1, written]},
            lambda: {"email": [written], "n": written},
            lambda: {f"email:{written}": 1},
        )
    )()
    for _ in range(draw.randrange(4)):
        part = draw.choice((lambda inner: [inner], lambda inner: {draw.choice(_NAMES): inner}))(part)
    record: dict[str, Any] = {"id": draw.choice([1, "x", None]), "city": draw.choice(["Rye", None]), name: part}
    if draw.random() < 0.3:
        record = {"address": {"street": "Elm"}, "card": {"holder": {"name": "Bo"}}} | record
    if draw.random() < 0.2:
        record |= {"email": draw.choice([None, 7, {}, ["x"]])} if name != "email" else {}
    if draw.random() < 0.15:
        record[written] = record.pop(name)
    text = json.dumps(record, ensure_ascii=draw.random() < 0.5)
    if draw.random() < 0.1:
        text = draw.choice((f"data: {text}", f"{text}\n{text}", f"[{text}]", json.dumps(text), text[:-1]))
    return (secret, secret.upper(), secret[::-1], written, json.dumps(written, ensure_ascii=False)[1:-1]), text


def test_a_masked_value_is_never_shown_wherever_and_however_it_was_written() -> None:
    leaks = []
    for seed in range(500):
        forbidden, text = _way(seed)
        shown = masked_json(text, COLUMNS, MASKED)
        line = masked_line(",".join([text.replace(",", ";").replace('"', ""), *["1"] * 6]), LINE, MASKED)
        pages = shown.text + shown.hidden_because + line.text + line.hidden_because
        leaks += [text for one in forbidden if one in pages]

    assert leaks == []


@pytest.mark.parametrize("order", range(20))
def test_a_masked_field_of_a_line_is_never_shown_in_whatever_order_the_fields_are(order: int) -> None:
    fields = ["1", "ann@x.org", "true", "2026-01-31T10:00Z", "2026-01-31", "1.50", "Rye"]
    random.Random(order).shuffle(fields)  # noqa: S311  # cases, no secrets

    assert "ann@x.org" not in masked_line(",".join(fields), LINE, MASKED).text
