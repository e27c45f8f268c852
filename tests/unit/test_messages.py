"""Secrets are recognised wherever they stand in a text, and what is no secret stays."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import messages
from sluice.errors import DeclarationError, LakehouseError, SluiceError
from sluice.failures.error_chains import chain_of
from sluice.messages import (
    Location,
    RedactingFormatter,
    holds_secret,
    name_secrets,
    one_line,
    plain_text,
    redacted,
    unshowable_character,
)

S = "Pl4nted-s3cret"

WITH_A_SECRET = [
    f"password={S}",
    f"db.passwd: {S}, next",
    f'{{"password": "{S}", "user": "u"}}',
    f"{{'secret_key': '{S}'}}",
    f'\\"client_secret\\": \\"{S}\\"',
    f"postgresql+psycopg://u:{S}@host:5432/db",
    f"https://u:{S}/with@odd@host/path",
    f"jdbc:postgresql://host/db?user=u&password={S}",
    f"-Djavax.net.ssl.trustStorePassword={S} -Dx=y",
    f"fs.s3a.secret.key={S}",
    f"Authorization: Bearer {S}abcdefgh",
    f"Basic {S}Zm9vOmJhcg==",
    f'sasl.jaas.config=o.a.k.ScramLoginModule required username="u" password="{S}";',
    f"AccountKey={S};EndpointSuffix=x",
    f"https://bucket/x?X-Amz-Credential=a&X-Amz-Signature={S}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n-----END RSA PRIVATE KEY-----",
    f"api_key => {S}",
    f"token: {S}",
    f"fernet_key = {S}",
    f"https://x.blob.core.windows.net/c?sv=2024&sig={S}%3D&se=1",
    f"https://{S}abcdef@github.com/o/r.git",
    f"jdbc:oracle:thin:u/{S}@host:1521/db",
    f"mysql --user u --password {S} db",
    f"tool --api-key {S}",
    f"the password is {S}",
    f"user=u pass={S} host=h",
    f"Cookie: session={S}; other={S}",
    f'"Set-Cookie": "session={S}; Path=/"',
]
AS_A_TYPE = ["token: intern4l-5ecret", "password=string9", "secret: dated-9f", 'pwd: "int"', "token: struct"]
OF_ITS_OWN_FORM = [
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefgh",
    "ghp_abcdefghijklmnopqrstuvwxyz",
    "xoxb-1234567890-abcdef",
    "glpat-abcdefghij0123456789",
    "sk-abcdefghijklmnopqrstuvwx",
    "sk_live_abcdefghijklmnop",
    "hf_abcdefghijklmnopqrstuvwxyz",
    "npm_abcdefghijklmnopqrstuvwxyz",
    "AIzaSyAbcdefghijklmnopqrstuvwxyz0123456",
]
HARMLESS = [
    "token=1763881234 is older than token: 77.",
    "fencing token 5 is stale",
    "the key `password` is missing; allowed are user, password, url",
    "http://127.0.0.1:8181/v1/config",
    "mail a@example.org about it",
    "postgresql+psycopg://user:password@host:port/database",
    "s3a://bucket/path",
    "12:30 and 12:31",
    "the password is missing",
    "the second pass: 3 files, signal=9, design=2",
    "task-abcdefghijklmnopqrstuvwx, passed 3",
    "http://user@host/path",
    "struct<token:int, password: struct<a:string>, access_token_at:timestamp>",
    "token: declared string, got long",
    "`secret` is new: decimal(9, 2)",
]


@pytest.mark.parametrize("text", WITH_A_SECRET)
def test_a_secret_is_left_out(text: str) -> None:
    assert S not in redacted(f"It failed: {text}.\nSee above.")
    assert redacted(text) == redacted(redacted(text))


@pytest.mark.parametrize("text", AS_A_TYPE)
def test_a_secret_that_begins_as_a_type_does_is_left_out(text: str) -> None:
    assert redacted(text).endswith("***")


@pytest.mark.parametrize("secret", OF_ITS_OWN_FORM)
def test_a_secret_of_its_own_form_is_left_out(secret: str) -> None:
    assert redacted(f"got {secret} there") == "got *** there"


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text
    assert not holds_secret(text)


def test_what_a_process_has_named_is_left_out_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_known", ())
    name_secrets(["two words", "two words and more", ""])

    assert redacted("client_secret=two words and more, x two words y") == "client_secret=***, x *** y"


@given(st.text(max_size=300))
def test_a_second_time_changes_nothing(text: str) -> None:
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize("text", ["password" * 20_000, 'token="' * 20_000, "a://b:" * 20_000, "eyJ" * 40_000])
@pytest.mark.timeout(60)
def test_a_long_text_does_not_take_for_ever(text: str) -> None:
    redacted(text)


@pytest.mark.parametrize("text", WITH_A_SECRET)
def test_errors_and_their_causes_repeat_none(text: str) -> None:
    place = Location(file=Path("a.stream.yaml"), line=1)
    for error in (LakehouseError(text, next_step=text), DeclarationError(text, location=place, next_step=text)):
        assert S not in f"{error} {error!r} {error.args} {error.message} {error.next_step}"
    try:
        raise RuntimeError(text)
    except RuntimeError as cause:
        outer = SluiceError("outer")
        outer.__cause__ = cause
    assert S not in str(chain_of(outer))


def test_a_log_line_and_its_traceback_repeat_none() -> None:
    try:
        raise ValueError(f"password={S}")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "x.py", 1, "cannot open %s", (f"postgresql://u:{S}@h/d",), (type(error), error, None)
        )
    assert S not in RedactingFormatter("%(message)s").format(record)


def test_texts_are_made_plain() -> None:
    assert unshowable_character("a\tb\nc é 😀") is None
    assert [unshowable_character(text) for text in ("a\0", "\x1b[31m", "\u202e", "\ud800")] == [
        "U+0000", "U+001B", "U+202E", "U+D800"
    ]  # fmt: skip
    assert one_line("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"
    assert plain_text("a\nb\0c", longest=100) == "a\nb\\x00c"
    assert plain_text("x" * 101, longest=100) == f"{'x' * 99}…"
