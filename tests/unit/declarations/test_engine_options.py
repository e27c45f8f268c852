"""No declaration can point a driver's checkpoint, classes, jars, catalogs or secrets elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from sluice.declarations.run_declaration import ALLOWED_OPTIONS, EngineDeclaration, option_problem

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "engine.md"
HIDDEN = ("s3a://x", "org.evil.Codec", "../x", "${env:SECRET}", "a b")
NAMES = [option.name for option in ALLOWED_OPTIONS]
DANGEROUS = (
    "spark.sql.streaming.checkpointLocation",
    "spark.sql.streaming.checkpointFileManagerClass",
    "spark.sql.catalog.lakehouse",
    "spark.sql.catalog.lakehouse.uri",
    "spark.sql.defaultCatalog",
    "spark.sql.extensions",
    "spark.sql.warehouse.dir",
    "spark.sql.sources.commitProtocolClass",
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.executorEnv.LD_PRELOAD",
    "spark.jars",
    "spark.jars.packages",
    "spark.jars.ivySettings",
    "spark.submit.pyFiles",
    "spark.pyspark.python",
    "spark.plugins",
    "spark.extraListeners",
    "spark.serializer",
    "spark.io.compression.codec",
    "spark.local.dir",
    "spark.eventLog.dir",
    "spark.hadoop.fs.s3a.endpoint",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.redaction.regex",
    "spark.master.rest.enabled",
    "spark.ui.enabled",
)


@pytest.mark.parametrize("name", DANGEROUS)
def test_what_is_dangerous_is_refused_whatever_its_value(name: str) -> None:
    assert option_problem(name, "true")


@given(name=st.one_of(st.text(), st.from_regex(r"spark\.[a-zA-Z.]{1,60}")), value=st.text())
@example(name=f"{NAMES[0]}\n", value="1m")
@example(name=NAMES[0].upper(), value="1m")
def test_no_other_name_is_allowed(name: str, value: str) -> None:
    assert name in NAMES or option_problem(name, value)


@given(name=st.sampled_from(NAMES), value=st.text())
@example(name=NAMES[0], value="1m\n")
@example(name=NAMES[0], value="\u0661m")
def test_no_allowed_value_is_a_path_an_address_a_class_or_a_second_argument(name: str, value: str) -> None:
    if not option_problem(name, value):
        assert value.isascii()
        assert len(value) <= 12
        assert not set(value) & set("/\\:;,=${}\"'` \t\n")


@given(
    name=st.sampled_from(NAMES), hidden=st.sampled_from(["s3a://x", "org.evil.Codec", "../x", "${env:SECRET}", "a b"])
)
def test_a_value_with_something_hidden_behind_it_is_refused(name: str, hidden: str) -> None:
    assert all(option_problem(name, value) for value in (hidden, f"1{hidden}", f"true{hidden}", f"1m\n{hidden}"))


def test_a_refusal_says_where_the_option_belongs_and_never_repeats_the_value() -> None:
    with pytest.raises(ValidationError, match=r"not given here: write `state\.shuffle_partitions`"):
        EngineDeclaration(options={"spark.sql.shuffle.partitions": "7"})
    with pytest.raises(ValidationError, match=r"Did you mean `spark\.sql\.adaptive\.enabled`"):
        EngineDeclaration(options={"spark.sql.adaptive.enable": "true"})
    assert "hunter2" not in option_problem("spark.hadoop.fs.s3a.secret.key", "hunter2")
    assert "hunter2" not in option_problem(NAMES[0], "hunter2")


def test_what_yaml_reads_as_a_number_or_a_flag_is_written_as_spark_does() -> None:
    engine = EngineDeclaration.model_validate(
        {"options": {"spark.sql.adaptive.enabled": False, "spark.task.maxFailures": 4}}
    )
    assert engine.options == {"spark.sql.adaptive.enabled": "false", "spark.task.maxFailures": "4"}


def test_the_guide_lists_what_is_allowed() -> None:
    rows = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("| `spark.")]
    assert rows == [
        f"| `{option.name}` | `{option.value.replace('|', chr(92) + '|')}` | {option.meaning} |"
        for option in ALLOWED_OPTIONS
    ]
