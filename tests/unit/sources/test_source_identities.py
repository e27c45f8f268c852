"""The identities and fields of what a stream reads: what counts as another thing, and what changed of a table."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimeType,
)

from sluice.sources.source_identities import (
    PLANNED,
    PLANS_AGAIN,
    WITHOUT_NEW,
    Replaced,
    SourceField,
    answer_to_fields,
    changed_fields,
    fields_of,
    find_replaced,
    input_table_name,
    output_table_name,
    topic_name,
    unreadable_fields,
)


def test_another_id_is_found_by_its_name() -> None:
    name = topic_name("kafka", "t")
    (found,) = find_replaced({name: "a"}, {name: "b"})
    assert found == Replaced(name="topic t of kafka", known="a", seen="b")
    assert found.is_topic("kafka", "t")
    assert not found.is_topic("other", "t")
    assert not found.is_output
    assert str(found) == "topic t of kafka was deleted and created again (its id was a and is b)"


def test_what_is_new_or_not_there_is_not_replaced() -> None:
    assert find_replaced({"topic a of k": "1"}, {"topic b of k": "2"}) == ()


def test_a_table_that_is_read_and_written_has_two_names() -> None:
    known = {input_table_name("a.b"): "1", output_table_name("a.b"): "1"}
    found = find_replaced(known, {output_table_name("a.b"): "2", input_table_name("a.b"): "2"})
    assert [(one.name, one.is_output) for one in found] == [("input table a.b", False), ("output table a.b", True)]


def schema(n: IcebergType | None = None, *, number: int = 2, name: str = "n", required: bool = True) -> Schema:
    """A table with an id and another column."""
    return Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(number, name, n or IntegerType(), required=required),
    )


@pytest.mark.parametrize(
    ("now", "phrase"),
    [
        (schema(required=False), "n: required int is now optional int"),
        (schema(LongType()), "n: required int is now required long"),
        (schema(DecimalType(20, 2)), "n: required int is now required decimal(20, 2)"),
        (schema(number=9), "n: required int is now gone"),
        (schema(name="m"), "n: required int is now m, required int"),
        (schema(StringType()), "n: required int is now required string"),
    ],
)
def test_a_field_that_is_not_as_it_was_is_named(now: Schema, phrase: str) -> None:
    assert changed_fields(fields_of(schema()), fields_of(now)) == (phrase,)


def test_what_is_added_changes_nothing() -> None:
    now = Schema(*schema().fields, NestedField(3, "more", FloatType(), required=False))
    assert changed_fields(fields_of(schema()), fields_of(now)) == ()


def nested(*inner: NestedField) -> Schema:
    """A table with fields in a struct, in a list of structs, and in the values of a map."""
    struct = StructType(*inner)
    return Schema(
        NestedField(1, "s", struct),
        NestedField(2, "l", ListType(10, StructType(NestedField(11, "x", IntegerType())))),
        NestedField(3, "m", MapType(12, StringType(), 13, IntegerType())),
    )


def test_fields_inside_of_others_are_compared_too() -> None:
    before = nested(NestedField(20, "a", IntegerType(), required=True))
    now = nested(NestedField(20, "a", IntegerType(), required=False), NestedField(21, "b", IntegerType()))
    assert changed_fields(fields_of(before), fields_of(now)) == ("s.a: required int is now optional int",)
    paths = [field.path for field in fields_of(before).values()]
    assert paths == ["s", "s.a", "l", "l.element", "l.element.x", "m", "m.key", "m.value"]


def test_what_a_run_does_about_the_fields_of_its_table_depends_on_what_it_has_planned() -> None:
    n, wide = (SourceField(path="n", kind=kind, required=True) for kind in ("int", "long"))

    assert answer_to_fields({1: n}, {1: wide}) == PLANS_AGAIN
    assert answer_to_fields({1: n}, {1: n, 2: wide}) == WITHOUT_NEW
    assert answer_to_fields({1: wide}, {1: wide}) == PLANNED


def test_a_column_that_no_reader_has_is_named_with_its_path() -> None:
    inner = NestedField(2, "opens", TimeType(), required=False)
    found = fields_of(Schema(NestedField(1, "s", StructType(inner), required=False)))
    assert unreadable_fields(found) == ("column s.opens of type time is a time of day, which Spark does not have",)
