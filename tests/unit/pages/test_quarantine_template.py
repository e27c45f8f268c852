"""The page of a quarantine as HTML: masks, what is hidden and why, and that the words of a record stay words."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.unit.pages.test_page_templates import HOSTILE
from tests.unit.pages.test_quarantine_page import NOON, declared, sample

from sluice.pages.page_templates import render
from sluice.pages.quarantine_page import QuarantinePage

PAGE = QuarantinePage(
    table="quarantine.typed_orders", samples=(), has_table=True, is_cut=False, masked_columns=("email",)
)


def page_of(**changed: Any) -> str:
    """The page of a quarantine."""
    values = {"base": "/sluice", "stream": "typed_orders", "page": replace(PAGE, **changed)}
    return render("quarantine", values | {"now": NOON + timedelta(minutes=3)})


def test_hostile_words_stay_words() -> None:
    samples = (
        sample(declared(), HOSTILE, reason=HOSTILE, position=HOSTILE),
        sample(declared("email"), HOSTILE, reason=f"at `{HOSTILE.replace('`', '')}`"),
    )
    named = replace(samples[0], source=HOSTILE, path=HOSTILE, batch=HOSTILE)

    page = page_of(samples=(*samples, named), masked_columns=(HOSTILE,), table=HOSTILE)

    assert "<img" not in page
    assert page.count("<script") == 1
    assert " style=" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_masked_and_hidden_values_are_not_in_the_page() -> None:
    masked = sample(declared("email"), '{"id": "x", "email": "ann@x.org"}')
    hidden = sample(declared("email"), '{"email": "bob@x.org')

    page = page_of(samples=(masked, hidden))

    assert "@x.org" not in page
    assert "&#34;email&#34;: &#34;••• (text)&#34;" in page
    assert "Hidden: it is not a JSON object, so its masked columns cannot be found." in page
    assert "Masked are <code>email</code>; of a value only" in page
    assert "3 min ago" in page


def test_a_page_without_records_says_why() -> None:
    assert "No record is in quarantine." in page_of()
    assert "sluice table create quarantine.typed_orders" in page_of(has_table=False)
    assert "a page looks at no others" in page_of(is_cut=True)
    assert "The record has no value." in page_of(samples=(sample(declared(), None),))
    assert "There are more rows" in page_of(samples=(sample(declared(), None),), is_cut=True)
