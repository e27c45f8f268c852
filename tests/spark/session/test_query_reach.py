"""What Spark's analysed plan of a query holds beside its inputs is refused, unless it is known to reach nothing."""

from __future__ import annotations

import re

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from tests.fixtures.workshop import Workshop

from sluice.errors import DeclarationError
from sluice_spark.query.logical_plan import problem_of, reach_problem
from sluice_spark.query.transformation import transform
from sluice_spark.session.jvm import jvm_of

REFUSED = {
    "SELECT reflect('java.lang.System', 'getenv', 'X')": "calls CallMethodViaReflection",
    "SELECT transform(list, x -> java_method('java.lang.Math', 'abs', x)) FROM rows": "calls CallMethodViaReflection",
    "SELECT max(try_reflect('java.lang.System', 'getenv', name)) OVER () FROM rows": "calls TryReflect",
    "SELECT id FROM rows WHERE name IN (SELECT reflect('java.lang.System', 'getenv', 'X'))": "calls CallMethodViaRefl",
    "WITH a AS (SELECT reflect('java.lang.System', 'getenv', 'X') v) SELECT v FROM a, rows": "calls CallMethodViaRefl",
    """SELECT from_avro(bytes, '"string"') FROM rows""": "calls FromAvro",
    "SELECT from_xml(name, 'x INT', map('rowValidation' || 'XSDPath', '/etc/hostname')) FROM rows": "calls XmlToStr",
    "SELECT xpath_string(name, 'a') FROM rows": "calls XPathString",
    "SELECT xpath(name, 'a/b') FROM rows": "calls XPathList",
    "SELECT schema_of_xml('<a/>', map('rowValidationXSDPath', '/etc/hostname')) FROM rows": "calls SchemaOfXml",
    "SELECT count(*) FROM rows GROUP BY CUBE (id, from_xml(name, 'x INT').x)": "calls XmlToStructs",
    "SELECT mine(id) FROM rows": "calls PythonUDF",
    "SELECT TRANSFORM(id) USING 'cat' FROM rows": "runs a program (ScriptTransformation)",
    "SELECT * FROM text.`file:///etc/hostname`": "reads or runs LogicalRelation",
    "SELECT id FROM rows WHERE name IN (SELECT value FROM text.`file:///etc/hostname`)": "reads or runs LogicalRel",
    "SELECT id FROM rows JOIN kept_by_others USING (id)": "reads or runs View",
    "SELECT id FROM global_temp.rows": "reads or runs View",
}


@pytest.fixture(scope="module")
def reading(spark: SparkSession) -> SparkSession:
    """A session of its own with the input `rows`, a view that is none, and a function."""
    session = spark.newSession()
    columns = "id int, name string, list array<int>, bytes binary"
    rows = session.createDataFrame([(1, "a", [1], b"a")], columns)
    rows.where("id > 0").createOrReplaceTempView("rows")
    session.range(3).createOrReplaceTempView("kept_by_others")  # whose plan has no relation
    session.createDataFrame([(1,)], "id int").createOrReplaceGlobalTempView("rows")
    session.udf.register("mine", lambda value: value)
    return session


@pytest.mark.parametrize("sql", REFUSED)
def test_a_plan_that_reaches_further_than_the_inputs_is_refused(reading: SparkSession, sql: str) -> None:
    problem = reach_problem(reading.sql(sql), ["rows"])
    assert problem is not None
    assert problem.startswith(REFUSED[sql])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM ROWS WHERE id > (SELECT avg(id) FROM rows)",
        "WITH a AS (SELECT * FROM rows) SELECT a.id, b.name FROM a JOIN rows b ON a.id = b.id",
        "WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r, rows",
        "SELECT x, count_if(id > 1), listagg(name) FROM rows LATERAL VIEW explode(list) t AS x GROUP BY CUBE (x)",
        "SELECT row_number() OVER (PARTITION BY name ORDER BY id) FROM rows",
        "SELECT * FROM rows, LATERAL (SELECT rows.id + 1), VALUES (1), (2) AS v(y), range(3)",
        "SELECT * FROM rows PIVOT (max(id) FOR name IN ('a'))",
        "FROM rows |> WHERE id > 1 |> SELECT from_json(name, 'a int'), uuid(), window(current_timestamp(), '1 hour')",
    ],
)
def test_what_spark_computes_of_the_inputs_is_not(reading: SparkSession, sql: str) -> None:
    assert reach_problem(reading.sql(sql), ["rows"]) is None


FUNCTIONS, OPERATORS = (f"org.apache.spark.sql.catalyst.{kind}." for kind in ("expressions", "plans.logical"))
ONE_ROW = {"class": f"{OPERATORS}OneRowRelation", "num-children": 0}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        *((f"{FUNCTIONS}{name}", f"calls {name}") for name in ("FromProtobuf", "ToProtobuf", "SchemaOfAvro", "ToAvro")),
        *((f"{FUNCTIONS}{name}", f"calls {name}") for name in ("PythonUDAF", "PythonUDTF", "ScalaUDF")),
        (f"{FUNCTIONS}UnresolvedPolymorphicPythonUDTF", "calls UnresolvedPolymorphicPythonUDTF"),
        ("org.apache.spark.sql.hive.HiveSimpleUDF", "reads or runs HiveSimpleUDF"),
    ],
)
def test_a_function_that_needs_another_class_path_is_refused_wherever_a_plan_has_it(kind: str, said: str) -> None:
    called = [{"class": kind, "num-children": 1}, {"class": f"{FUNCTIONS}Literal", "num-children": 0}]
    for place in (called, [called], [[called]], {"product-class": "one of Spark's", "of": [called]}):
        problem = problem_of([{"class": f"{OPERATORS}Project", "num-children": 1, "x": place}, ONE_ROW], [])
        assert problem is not None
        assert problem.startswith(said)


@pytest.mark.parametrize("kind", ["com.example.Range", f"{OPERATORS}RelationTimeTravel"])
def test_a_relation_that_is_not_known_is_refused(kind: str) -> None:
    name = kind.rpartition(".")[2]
    said = f"reads or runs {name}, which is no input of it: declare it as one"
    assert problem_of([{"class": kind, "num-children": 0}], []) == said
    view = {"class": f"{OPERATORS}View", "num-children": 1, "desc": {"identifier": {"table": "Rows"}}}
    assert problem_of([view, {"class": kind, "num-children": 0}], ["rows"]) is None


def test_a_transformation_is_asked_once_spark_has_resolved_it(workshop: Workshop) -> None:
    """The words of the query say nothing about what a name stands for."""
    other = workshop.declare_table("secrets", {"id": "long"})
    target = workshop.declare_table("results", {"id": "long"})
    workshop.declare_stream(
        "numbers",
        sql=f"SELECT id FROM numbers WHERE id IN (SELECT id FROM lakehouse.{other})",  # noqa: S608  # of this test
        inputs={"numbers": {"stream": {"iceberg": {"table": workshop.declare_table("numbers", {"id": "long"})}}}},
        outputs={"main": {"iceberg": {"table": target}}},
    )
    with pytest.raises(DeclarationError, match="reads or runs DataSourceV2Relation, which is no input of it"):
        transform(workshop.spark, workshop.stream("numbers"), {"numbers": workshop.spark.range(1, 4)})


REACHING = {
    *("from_avro", "from_protobuf", "from_xml", "schema_of_avro", "schema_of_xml", "to_avro", "to_protobuf"),
    *("java_method", "reflect", "try_reflect"),
    *(
        "xpath",
        "xpath_boolean",
        "xpath_double",
        "xpath_float",
        "xpath_int",
        "xpath_long",
        "xpath_number",
        "xpath_short",
    ),
    "xpath_string",
}


@pytest.mark.full  # a second for twenty functions, and a list of those that matter in every run
def test_of_spark_s_own_functions_those_that_reach_further_are_refused(reading: SparkSession) -> None:
    """Each is called as its own documentation calls it."""
    registry = jvm_of(reading).org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    known = registry.listFunction()
    found: dict[str, str | None] = {}
    for index in range(known.size()):
        name = known.apply(index).funcName()
        examples = registry.lookupFunction(known.apply(index)).get().getExamples()
        for sql in re.findall(r"^\s*> (SELECT .*);\s*$", examples, re.MULTILINE):
            try:
                problem = reach_problem(reading.sql(sql), [])
            except (AnalysisException, ParseException, Py4JJavaError):  # an example without its rows
                continue
            found[name] = found.get(name) or problem
    assert len(found) > 400
    assert {name for name, problem in found.items() if problem is not None} <= REACHING
