"""The parts of messages: text that every table, log, page and terminal can show, places, durations, and no secrets.

PostgreSQL stores no NUL and no half of a surrogate pair; a terminal obeys control characters; a page shows what follows
a change of direction in another order than it is stored.

A secret is found by what stands before it (`password=`), by its own form (a token, a private key), or because the
process has named it: a deployment's own secrets need not be guessed. No message repeats a value of which it is known
that it may be secret.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"
_DIRECTION = "\u202a-\u202e\u2066-\u2069"
_HALF_PAIRS = "\ud800-\udfff"
_UNSHOWABLE = re.compile(f"[{_CONTROL}{_DIRECTION}{_HALF_PAIRS}]")
_NOT_IN_A_LINE = re.compile(f"[\t\n{_CONTROL}{_DIRECTION}{_HALF_PAIRS}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where something was written: a file and, where it is known, the 1-based line."""

    file: Path
    line: int | None = None

    def __str__(self) -> str:
        return one_line(str(self.file)) + (f":{self.line}" if self.line is not None else "")


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def unshowable_character(text: str) -> str | None:
    """The first character that cannot be shown, as `U+0000`; none when all can. Tabs and line feeds can."""
    if text.isprintable() or text.replace("\n", "").isprintable():  # ten times as fast, and right for most texts
        return None
    found = _UNSHOWABLE.search(text)
    return f"U+{ord(found[0]):04X}" if found is not None else None


def one_line(text: str) -> str:
    r"""The text in one line, with an escape such as `\x1b` for each character that cannot be shown there."""
    return text if text.isprintable() else _NOT_IN_A_LINE.sub(_escape, text)


def plain_text(text: str, *, longest: int) -> str:
    r"""The text with an escape such as `\x00` for each character that cannot be shown, cut to a length.

    Parameters
    ----------
    longest: the most characters of the result; a cut text ends with `…`.
    """
    plain = _UNSHOWABLE.sub(_escape, text[: longest + 1])
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def in_words(duration: timedelta) -> str:
    """A duration in its two largest units: `4 min 10 s`, `2 h`, `1.4 s`, `20 ms`; nothing when it is negative."""
    seconds = max(0.0, duration.total_seconds())
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if 1 <= seconds < 10 and not seconds.is_integer():
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size or parts:
            count, left = divmod(left, size)
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part) or "0 s"


HIDDEN = "***"
"""What stands in place of a secret."""

_NAMES = (
    r"secret|passw(?:or)?d|passphrase|pwd|token|credential|access[_.\-]?key|account[_.\-]?key|api[_.\-]?key|"
    r"private[_.\-]?key|fernet[_.\-]?key|signing[_.\-]?key|signature|authorization|jaas|sasl[_.\-]?config|cookie"
)
SECRET_NAME = re.compile(rf"(?i){_NAMES}")
"""A name of a setting, a column of a form, or a key of a mapping whose value is secret."""

_QUOTED = r"""\\?"(?:[^"\\]|\\.){0,4000}\\?"|'(?:[^'\\]|\\.){0,4000}'"""
_VALUE = rf"""(?:{_QUOTED}|[^\s,;&"'}}\])]{{1,4000}})"""
_SIGN = r"""\\?["']?\s{0,4}(?:=>|[=:])\s{0,4}"""
_NO_LEASE = r"""(?!(?<=token)\s{0,4}[=:]\s{0,4}[0-9]{1,19}\b)"""
"""The token of a lease is a number and no secret."""
_NO_TYPE = (
    r"(?!\s{0,4}(?:(?:struct|array|list|map)<|(?:decimal|fixed)[(\[]|"
    r"(?:boolean|tinyint|smallint|int|bigint|long|float|double|date|timestamp(?:_ntz|_ltz|tz)?|string|uuid|binary|"
    r"declared|required|optional)(?![\w.\-/+=])))"
)
"""A column may be called as a secret is, and then its type follows: `struct<token: int>`."""

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # a private key, whole
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # Authorization: Bearer …, Basic …
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}"), rf"\1 {HIDDEN}"),
    # scheme://user:password@host, also when the password itself holds an unescaped `@` or `/`
    (
        re.compile(r"(?i)\b([a-z][a-z0-9+.\-]{0,30}://[^\s/@:'\"]{0,200}):(?!password@)([^\s'\"]{0,1000})@"),
        rf"\1:{HIDDEN}@",
    ),
    # scheme://token@host
    (re.compile(r"(?i)\b((?:https?|git\+https|ftp)://)[A-Za-z0-9_.~%+\-]{16,1000}@"), rf"\1{HIDDEN}@"),
    # jdbc:oracle:thin:user/password@host
    (re.compile(r"(?i)\b(jdbc:oracle:[a-z0-9]{1,20}:[^\s/@:'\"]{1,200})/[^\s'\"@]{1,1000}@"), rf"\1/{HIDDEN}@"),
    # Cookie: name=value; name=value, to the end of the line
    (re.compile(r"(?i)\b((?:set-)?cookie[\"']?\s{0,4}:\s{0,4})[^\r\n]{1,8000}"), rf"\1{HIDDEN}"),
    # --password …, --api-key …
    (
        re.compile(rf"(?i)(--?(?:[\w\-]{{0,40}}(?:{_NAMES})[\w\-]{{0,40}}|pass)\s{{1,4}})(?![-*]){_VALUE}"),
        rf"\1{HIDDEN}",
    ),
    # sig=…, pass=…, which are no parts of other words
    (re.compile(rf"(?i)((?<![A-Za-z])(?:sig|pass)=){_VALUE}"), rf"\1{HIDDEN}"),
    # password is …, within a line that gives it
    (
        re.compile(
            r"(?i)\b((?:passw(?:or)?d|passphrase) is )"
            r"(?!missing|not |wrong|invalid|set|empty|needed|a |an |the |\*)\S{1,1000}"
        ),
        rf"\1{HIDDEN}",
    ),
    # password=…, "password": "…", and names that continue: secret.key=…, passwordFile: …
    (re.compile(rf"(?i)((?:{_NAMES})[\w.\-]{{0,60}}{_NO_LEASE}{_SIGN}){_NO_TYPE}{_VALUE}"), rf"\1{HIDDEN}"),
    # tokens by their own form: JSON Web Tokens, AWS, GitHub, Slack, Google
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{5,}\.[A-Za-z0-9_\-]{5,}(?:\.[A-Za-z0-9_\-]*)?"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"), HIDDEN),
    (re.compile(r"\bxox[abprs]-[A-Za-z0-9\-]{10,}"), HIDDEN),
    (re.compile(r"\bgl(?:pat|ptt|dt|rt|cbt)-[A-Za-z0-9_\-]{15,}"), HIDDEN),
    (re.compile(r"\bsk-[A-Za-z0-9_\-]{16,}|\b[sr]k_(?:live|test)_[A-Za-z0-9]{10,}"), HIDDEN),
    (re.compile(r"\b(?:npm_|pypi-|dop_v1_|hf_|dapi)[A-Za-z0-9_\-]{20,}"), HIDDEN),
    (re.compile(r"\bAIza[A-Za-z0-9_\-]{35}"), HIDDEN),
)

_MAY_HOLD_ONE = re.compile(
    rf"(?i){_NAMES}|://|bearer|basic|eyJ|AKIA|ASIA|gh[pousr]_|github_pat|xox|AIza|PRIVATE KEY|"
    r"sig|pass|jdbc|gl[a-z]{2,3}-|[sr]k[-_]|npm_|pypi-|dop_v1_|hf_|dapi"
)
"""What every text with a secret holds somewhere; most texts hold nothing of it."""


_known: tuple[str, ...] = ()
"""The secrets that this process has named, longest first."""


def name_secrets(values: Iterable[str]) -> None:
    """Take these very values out of every text from now on, beside those named before. Short ones may be words: a
    deployment's `secret_values` has none."""
    global _known
    _known = tuple(sorted({*_known, *values} - {""}, key=len, reverse=True))


def redacted(text: str) -> str:
    """The text with `***` in place of every secret that is recognised. A second time it changes nothing."""
    for secret in _known:
        text = text.replace(secret, HIDDEN)
    if _MAY_HOLD_ONE.search(text) is None:
        return text
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def holds_secret(text: str) -> bool:
    """Whether a secret is recognised in the text."""
    return redacted(text) != text


class RedactingFormatter(logging.Formatter):
    """Formats a record as its parent does, then takes secrets out: of the message and of the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or the lines with a traceback."""
        return redacted(super().format(record))
