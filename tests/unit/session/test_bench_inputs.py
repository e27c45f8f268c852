"""What an input of the test bench keeps of the declared one."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.declarations.input_declaration import InputDeclaration
from sluice_spark.testing import _fed

VALUE = {"format": "json", "columns": [{"name": "id", "type": "long"}]}


@pytest.mark.parametrize(
    ("source", "column"),
    [
        ({"iceberg": {"table": "a.b", "value": VALUE, "value_column": "raw"}}, "raw"),
        ({"iceberg": {"table": "a.b", "value": VALUE}}, "value"),
        ({"iceberg": {"table": "a.b", "on_delete": "skip"}}, None),
        ({"kafka": {"connection": "c", "topics": ["t"]}}, None),
    ],
)
def test_values_that_a_table_stores_are_decoded_on_the_bench_too(source: dict[str, Any], column: str | None) -> None:
    declared = InputDeclaration.model_validate({"stream": source})

    fed = _fed(declared, "orders", prefix="t1")

    own = fed.declared_source.iceberg
    assert own is not None
    assert own.table == "t1_inputs.orders"
    if column is None:
        assert own.value is None
    else:
        assert (own.value, own.value_column) == (declared.declared_source.value, column)
    again = InputDeclaration.model_validate(fed.model_dump(mode="json", exclude_unset=True, exclude_none=True))
    assert again == fed
