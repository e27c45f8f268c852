"""Masked columns are masked wherever a malformed value has them; where they cannot be found, the value is hidden."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.pages.masked_values import LONGEST_SEARCHED, MASK, masked_json, masked_line

COLUMNS = ("email", "address.street", "card.holder.name")

JSON_CASES = [
    ('{"id": 1, "email": "ann@x.org"}', '{"id": 1, "email": "•••"}'),
    ('{"email": 7, "ok": true}', '{"email": "•••", "ok": true}'),
    ('{"email": null}', '{"email": null}'),
    ('{"email": {"of": "ann"}, "x": []}', '{"email": "•••", "x": []}'),
    ('{"email": ["ann", "bob"]}', '{"email": "•••"}'),
    ('{"email": "a", "email": "b"}', '{"email": "•••", "email": "•••"}'),
    ('{"EMail": "ann"}', '{"EMail": "•••"}'),
    ('{"em\\u0061il": "ann"}', '{"email": "•••"}'),
    ('{"user": {"email": "ann", "id": 2}}', '{"user": {"email": "•••", "id": 2}}'),
    ('{"users": [{"email": "ann"}, {"id": 3}]}', '{"users": [{"email": "•••"}, {"id": 3}]}'),
    ('{"street": "no address above"}', '{"street": "no address above"}'),
    ('{"address": {"street": "Elm", "city": "Rye"}}', '{"address": {"street": "•••", "city": "Rye"}}'),
    ('{"address": [{"street": "Elm"}, {"city": "Rye"}]}', '{"address": [{"street": "•••"}, {"city": "Rye"}]}'),
    ('{"address": "Elm 5, Rye"}', '{"address": "•••"}'),
    ('{"address": ["Elm 5", null]}', '{"address": ["•••", null]}'),
    ('{"address": 5}', '{"address": "•••"}'),
    ('{"address": {"home": {"street": "Elm"}}}', '{"address": {"home": {"street": "•••"}}}'),
    ('{"was": {"address": {"street": "Elm"}}}', '{"was": {"address": {"street": "•••"}}}'),
    ('{"card": {"holder": "Ann"}}', '{"card": {"holder": "•••"}}'),
    ('{"card": {"holder": {"name": "Ann", "n": 1}}}', '{"card": {"holder": {"name": "•••", "n": 1}}}'),
    ('{"card": {"id": 1}}', '{"card": {"id": 1}}'),
    ('{"text": "{\\"email\\": \\"ann\\", \\"id\\": 1}"}', '{"text": "{\\"email\\": \\"•••\\", \\"id\\": 1}"}'),
    ('{"text": "{\\"email\\": \\"ann"}', '{"text": "•••"}'),
    ('{"text": " [{\\"email\\": 1}]"}', '{"text": "[{\\"email\\": \\"•••\\"}]"}'),
    ('{"text": "\\ufeff{\\"email\\": \\"ann\\"}"}', '{"text": "{\\"email\\": \\"•••\\"}"}'),
    ('{"text": "\\"quoted\\" email"}',) * 2,
    ('{"n": 1.50, "big": 123456789012345678901234567890, "e": 1E400, "not": NaN}',) * 2,
    ('[{"email": "ann"}, {"id": 1}]', '[{"email": "•••"}, {"id": 1}]'),
    ('{"ключ": "значение", "email": "энн"}', '{"ключ": "значение", "email": "•••"}'),
    (
        '{"v": "eyJlbWFpbCI6ImFubiJ9", "w": "Portland", "x": "W3siYSI6MX1d"}',
        '{"v": "•••", "w": "Portland", "x": "•••"}',
    ),
    ("{}", "{}"),
]

JSON_CASES.append(
    (
        json.dumps({"text": json.dumps(json.dumps({"email": "ann"}))}),
        json.dumps(
            {"text": json.dumps(json.dumps({"email": MASK}, ensure_ascii=False), ensure_ascii=False)},
            ensure_ascii=False,
        ),
    )
)

HIDDEN = [
    "",
    " ",
    "{",
    '{"email": "ann@x.org"',
    '{"email": "ann@x.org"} trailing',
    "email=ann@x.org",
    '"ann@x.org"',
    '"{\\"email\\": \\"ann\\"}"',
    "17",
    "null",
    "true",
    "[]",
    '["ann@x.org"]',
    '[{"id": 1}, "ann@x.org"]',
    "0x7B22656D61696C",
    "\ufeff{}",
    "1,ann@x.org,Elm",
    "[" * 100_000,
    '{"a":' * 10_000 + "1" + "}" * 10_000,
    '{"id": "' + "x" * LONGEST_SEARCHED + '"}',
]


@pytest.mark.parametrize(("text", "shown"), JSON_CASES)
def test_masked_columns_are_masked_and_all_else_is_as_it_was_sent(text: str, shown: str) -> None:
    masked = masked_json(text, COLUMNS)

    assert (masked.text, masked.hidden_because) == (shown, "")


@pytest.mark.parametrize("text", HIDDEN, ids=lambda text: text[:20] or "empty")
def test_a_value_in_which_the_columns_cannot_be_found_is_hidden(text: str) -> None:
    masked = masked_json(text, COLUMNS)

    assert masked.text == ""
    assert masked.hidden_because
    assert "@" not in masked.hidden_because


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["email", "address", "street", "x"]), inner),
        max_leaves=25,
    )
)
def test_no_masked_text_is_left_in_any_document(inner: object) -> None:
    masked = masked_json(
        json.dumps({"top": inner, "email": "planted@x.org", "address": {"street": "planted"}}), COLUMNS
    )

    if not masked.hidden_because:
        shown = json.loads(masked.text)
        assert (shown["email"], shown["address"]["street"]) == (MASK, MASK)
        assert list(leaves(shown, "email")) == [one for one in leaves(shown, "email") if one in (MASK, None)]


def leaves(document: object, key: str) -> list[object]:
    """What a document has under a key, at any depth."""
    if isinstance(document, list):
        return [found for one in document for found in leaves(one, key)]
    if not isinstance(document, dict):
        return []
    own = [document[key]] if key in document else []
    return own + [found for name, inner in document.items() if name != key for found in leaves(inner, key)]


NAMES = ("id", "email", "address")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1,ann@x.org,Elm", "1,•••,•••"),
        ('x,"ann, of x",', "x,•••,•••"),
        ('1,"ann\nof x",Elm', "1,•••,•••"),
        ('"1,5",ann,"say ""hi"""', '"1,5",•••,•••'),
        ('"{""email"": 1}",ann,Elm', '"{""email"": ""•••""}",•••,•••'),
    ],
)
def test_the_fields_of_a_line_are_masked_by_their_place(text: str, shown: str) -> None:
    assert masked_line(text, NAMES, COLUMNS).text == shown


@pytest.mark.parametrize(
    "text",
    ["", "1,ann", "1,ann,Elm,more", '1,"ann,Elm', "1,ann,Elm\n2,bob,Oak", '1,"ann"x,Elm', "x" * (LONGEST_SEARCHED + 1)],
    ids=lambda text: text[:20],
)
def test_a_line_with_other_fields_is_hidden(text: str) -> None:
    masked = masked_line(text, NAMES, COLUMNS)

    assert masked.text == ""
    assert masked.hidden_because
