"""Proxies and certificates are taken from the environment once, where that cannot be wrong."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.rest import OAUTH2_SERVER_URI
from requests import Session

from sluice.tables.catalog import BoundedRestCatalog


def read(token_server: str | None) -> Session:
    """A session of a catalog that asks a token server, or itself."""
    catalog = BoundedRestCatalog.__new__(BoundedRestCatalog)
    catalog.uri = "http://catalog.example:1/"
    catalog.properties = {} if token_server is None else {OAUTH2_SERVER_URI: token_server}
    session = Session()
    catalog._read_environment_once(session)
    return session


@pytest.mark.parametrize("token_server", [None, "http://catalog.example:1/v1/oauth/tokens", "http://tokens.example:2/"])
def test_where_both_servers_have_one_proxy_it_is_read_once(
    monkeypatch: pytest.MonkeyPatch, token_server: str | None
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    session = read(token_server)
    assert not session.trust_env
    assert session.proxies["http"] == "http://proxy.example:3128"


def test_where_the_token_server_has_another_one_every_request_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "tokens.example")
    session = read("http://tokens.example:2/")
    assert session.trust_env
    assert not session.proxies
