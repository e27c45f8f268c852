"""The pages that Great Expectations writes: values are escaped, and only the pages' own scripts may run."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path

from sluice.quality.check_results import escaped, protect_pages, protected

OWN = "function showAllValidations() { return 1; }"
PAGE = (
    "<html><head><title>x</title></head><body>"
    '<script src="https://code.example/jquery.js"></script>'
    f"<script>{OWN}</script>"
    '<button onclick="showAllValidations()">all</button>'
    "<script>alert(1)</script>"
    '<script src="https://evil.example/x.js"></script>'
    '<b onclick="showAllValidations();alert(1)">x</b>'
    "</body></html>"
)
TEMPLATE = f'<script src="https://code.example/jquery.js"></script> <script>{OWN}</script>'


def digest(text: str) -> str:
    """The word by which a policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy_of(page: str) -> str:
    """The policy of a page, which stands before everything else in its head."""
    found = re.search(r'<head>\n<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert found is not None
    return html.unescape(found[1])


def test_every_text_of_a_value_is_escaped_and_nothing_else_is_changed() -> None:
    value = {"<k>": ["<b>", 1, None, True, 2.5, {"x": ("'", '"&"')}]}
    assert escaped(value) == {"&lt;k&gt;": ["&lt;b&gt;", 1, None, True, 2.5, {"x": ["&#x27;", "&quot;&amp;&quot;"]}]}


def test_a_page_runs_the_scripts_of_its_templates_alone() -> None:
    policy = policy_of(protected(PAGE, known_scripts=TEMPLATE))
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert scripts.split() == [
        "script-src", "'unsafe-hashes'", "https://code.example/jquery.js", digest(OWN), digest("showAllValidations()")
    ]  # fmt: skip
    assert "default-src 'none'" in policy
    assert "form-action 'none'" in policy
    assert "base-uri 'none'" in policy


def test_every_page_of_a_check_gets_a_policy(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "page.j2").write_text(TEMPLATE)
    for name in ("index.html", "validations/a.html"):
        page = tmp_path / "docs" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(PAGE)
    protect_pages(tmp_path / "docs", templates=tmp_path / "templates")
    start, check = (policy_of((tmp_path / "docs" / name).read_text()) for name in ("index.html", "validations/a.html"))
    assert digest("alert(1)") in start, "the start page has no value of a row, and its tables are scripts"
    assert digest("alert(1)") not in check
