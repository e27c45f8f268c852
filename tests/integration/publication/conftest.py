"""A workbench on each of the two catalogs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.catalog import Catalog
from sqlalchemy.engine import URL
from tests.fixtures.ledger import administer
from tests.fixtures.publication import CatalogPlace, OpenCatalog, Workbench, open_catalog_at

from sluice.publication.staged_batch import StagedOutput


@pytest.fixture(scope="module")
def catalog_database_url(postgres_url: URL) -> str:
    """The URL of a database for pyiceberg's SQL catalog."""
    name = f"catalog_{uuid4().hex}"
    administer(postgres_url, f"CREATE DATABASE {name}")
    return postgres_url.set(database=name).render_as_string(hide_password=False)


@pytest.fixture(scope="module", params=["rest", "sql"])
def catalog_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CatalogPlace:
    """Where one of the two catalogs is."""
    if request.param == "rest":
        return CatalogPlace(environment=request.getfixturevalue("services_stack").environment())
    warehouse = f"file://{tmp_path_factory.mktemp('warehouse')}"
    return CatalogPlace(sql_url=request.getfixturevalue("catalog_database_url"), warehouse=warehouse)


@pytest.fixture
def catalog_opener(catalog_place: CatalogPlace) -> Iterator[OpenCatalog]:
    """Opens the catalog. All that it opened is closed in the end."""
    opened: list[Catalog] = []

    def opener() -> Catalog:
        opened.append(open_catalog_at(catalog_place))
        return opened[-1]

    yield opener
    for catalog in opened:
        catalog.close()


@pytest.fixture
def new_bench(catalog_opener: OpenCatalog, catalog_place: CatalogPlace) -> Callable[..., Workbench]:
    """Makes an output of a stream that no other test knows; nothing of it exists yet. Takes the target's layout."""

    def make(**layout: Any) -> Workbench:
        name = f"s{uuid4().hex[:8]}"
        output = StagedOutput(stream=name, output="main", target=f"{name}.flights")
        return Workbench(
            open_catalog=catalog_opener, catalog=catalog_opener(), output=output, place=catalog_place, layout=layout
        )

    return make


@pytest.fixture
def bench(new_bench: Callable[..., Workbench]) -> Workbench:
    """An output whose target exists and whose first generation is open."""
    made = new_bench()
    made.declare()
    made.begin()
    return made
