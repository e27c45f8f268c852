"""The declaration of a stream: inputs → transformation → outputs, and how it runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.output_declaration import IcebergOutput, OutputDeclaration
from sluice.declarations.rule_declaration import RuleDeclaration, require_distinct
from sluice.declarations.run_declaration import (
    EngineDeclaration,
    RejectionLimit,
    StateDeclaration,
    SupervisionDeclaration,
)
from sluice.declarations.scalar_types import (
    MOST_TAGS,
    ColumnPath,
    Cron,
    Declared,
    Description,
    Duration,
    Flag,
    Name,
    OneOfKinds,
    Owner,
    TableName,
    Tag,
    listed,
    wrong,
)
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.transformation_declaration import BackfillDeclaration, TransformationDeclaration
from sluice.stored_keys import is_shadow_name

RECORD_TRIGGERS = frozenset({"continuous_processing", "real_time"})
"""The triggers with which Spark hands records on one by one. Spark's own Kafka sink writes them. There is no batch, so
everything that needs one is rejected: tables, functions, a quarantine."""


INCREMENTAL_TRIGGERS = frozenset({"available_now", "once"})
"""The triggers that end by themselves; all others run until they are stopped."""


class TriggerDeclaration(OneOfKinds):
    """When a batch is planned."""

    processing_time: Duration | None = Field(None, description="continuous: a batch so often")
    available_now: Literal[True] | None = Field(
        None, description="incremental: all that is there, in as many batches as the inputs' limits ask for"
    )
    once: Literal[True] | None = Field(None, description="incremental: the same as `available_now`")
    continuous_processing: Duration | None = Field(
        None, description="continuous: Spark's record-at-a-time processing, with a checkpoint so often"
    )
    real_time: Duration | None = Field(None, description="continuous: Spark's real-time mode, with batches this long")


class ScheduleDeclaration(Declared):
    """When an incremental stream runs: by the clock, by new data in tables, or by whichever comes first."""

    cron: Cron | None = Field(None, description="five fields or a preset such as `@hourly`, in UTC")
    tables: tuple[TableName, ...] = Field((), description="run when all of these tables have new rows")

    @model_validator(mode="after")
    def _by_something(self) -> Self:
        if self.cron is None and not self.tables:
            raise ValueError("a schedule names a cron, tables, or both")
        return self

    @property
    def is_by_tables_alone(self) -> bool:
        """Whether no run comes while its tables get no rows."""
        return self.cron is None


MOST_MASKED = 100
"""How many columns a stream masks at most: each value that is shown is searched for all of them."""

QUARANTINE_NAMESPACE = "quarantine"
QUARANTINE_OUTPUT = "quarantine"
"""The name of the output under which a transformation returns the rows it rejects."""

PLATFORM_DAGS = frozenset(
    {
        "backfill_gaps",
        "checkpoint_health",
        "copy_rehearsals",
        "data_quality",
        "ledger_upkeep",
        "stream_control",
        "stream_reconciler",
        "table_maintenance",
    }
)
"""The DAG of a stream has the stream's name, so no stream may have the name of one of the platform's DAGs."""

SHORT_DAGS = ("stream_reconciler", "ledger_upkeep", "stream_control", "checkpoint_health", "backfill_gaps")
"""The platform's DAGs whose tasks end within minutes: the reconciler alone runs 1,440 times a day. The DAGs of streams
are not among them: Airflow judges a task by its beginning, and the task of a live stream may have begun long ago."""


def _is_grouped(output: OutputDeclaration) -> bool:
    return output.iceberg is not None and output.iceberg.publish_every is not None


class QuarantineRetention(Declared):
    """How long the rows of a quarantine are kept; its maintenance removes the others."""

    resolved: Duration | None = Field(
        None, description="after a row was resolved, for example `30 days`; unset: resolved rows stay"
    )
    open: Duration | None = Field(
        None, description="after a row was rejected, when it is not resolved by then; unset: open rows stay"
    )

    @model_validator(mode="after")
    def _of_something(self) -> Self:
        if self.resolved is None and self.open is None:
            raise ValueError("say how long `resolved` rows, `open` rows, or both are kept")
        return self


class StreamDeclaration(Declared):
    """A declared dataflow: inputs → transformation → outputs, and how it is run."""

    stream: Name = Field(description="the stream's name: also its file's, its DAG's, and its checkpoint's")
    description: Description = Field(description="what it does, for a reader who does not know it")
    owner: Owner = Field(description="who answers for it")
    tags: tuple[Tag, ...] = Field((), max_length=MOST_TAGS, description="words to find it by in Airflow")
    mode: Literal["continuous", "incremental"] = Field(
        description="`continuous`: a driver that runs until it is stopped; `incremental`: a run for each schedule"
    )
    schedule: ScheduleDeclaration | None = Field(None, description="when an incremental stream runs")
    trigger: TriggerDeclaration | None = Field(
        None, description="when a batch is planned; an incremental stream needs none and runs `available_now`"
    )
    inputs: dict[Name, InputDeclaration] = Field(min_length=1, description="the transformation's inputs by name")
    transformation: TransformationDeclaration = Field(description="the function or query that computes the outputs")
    outputs: dict[Name, OutputDeclaration] = Field(min_length=1, description="where its rows go, by name")
    quarantine: Flag = Field(
        False, description="whether the transformation also returns the rows it refuses, as the output `quarantine`"
    )
    quarantine_retention: QuarantineRetention | None = Field(
        None, description="how long rejected rows are kept; unset: for ever"
    )
    masked_columns: tuple[ColumnPath, ...] = Field(
        (),
        max_length=MOST_MASKED,
        description="columns of the inputs, and fields of columns such as `address.street`, whose values the page of "
        "the quarantine does not show; the quarantine itself holds them",
    )
    rules: tuple[RuleDeclaration, ...] = Field(
        (), description="what must be true of every row and batch that it writes, beside the rules of its tables"
    )
    state: StateDeclaration = Field(StateDeclaration(), description="where a stateful stream keeps its state")
    supervision: SupervisionDeclaration = Field(
        SupervisionDeclaration(), description="what to do when a run fails, stalls or falls behind"
    )
    backfill: BackfillDeclaration | None = Field(None, description="how an interval of the past is processed again")
    engine: EngineDeclaration = Field(
        default_factory=EngineDeclaration,  # an instance with its dict of options would be copied deeply each time
        description="what a driver may use",
    )

    @model_validator(mode="after")
    def _name_is_free(self) -> Self:
        if self.stream in PLATFORM_DAGS:
            raise wrong("this is the name of a DAG of the platform", "stream")
        if is_shadow_name(self.stream):
            raise wrong("names of this form belong to refreshes, as `refresh_7_1a2b3c4d_of_silver_flights`", "stream")
        if QUARANTINE_OUTPUT in self.outputs:
            raise wrong("this output's name is the platform's: write `quarantine: true`", "outputs", QUARANTINE_OUTPUT)
        return self

    @model_validator(mode="after")
    def _mode_fits(self) -> Self:
        if self.mode == "continuous":
            if self.schedule is not None:
                raise wrong("a continuous stream has a trigger and no schedule", "schedule")
            if self.engine.kept_minutes:
                raise wrong("belongs to an incremental stream: this driver runs all the time", "engine", "kept_minutes")
            if self.trigger is None:
                raise ValueError(
                    "a continuous stream needs the key `trigger`, for example `processing_time: 2 seconds`"
                )
            if self.trigger.kind in INCREMENTAL_TRIGGERS:
                raise wrong(
                    "this trigger ends by itself: it belongs to an incremental stream", "trigger", self.trigger.kind
                )
            return self
        if self.schedule is None:
            raise ValueError("an incremental stream needs the key `schedule`: a cron, tables, or both")
        if self.trigger is not None and self.trigger.kind not in INCREMENTAL_TRIGGERS:
            raise wrong("this trigger never ends: it belongs to a continuous stream", "trigger", self.trigger.kind)
        return self

    @model_validator(mode="after")
    def _limits_are_kept(self) -> Self:
        for name, declared in self.inputs.items():
            kinesis = declared.declared_source.kinesis
            if self.mode == "incremental" and kinesis is not None and kinesis.max_records_per_batch is not None:
                place = ("inputs", name, "stream", "kinesis", "max_records_per_batch")
                raise wrong("belongs to a continuous stream: Spark reads this source in one batch for each run", *place)
        return self

    @model_validator(mode="after")
    def _rows_arrive(self) -> Self:
        if not any(declared.is_stream for declared in self.inputs.values()):
            raise wrong("at least one input is a stream", "inputs")
        return self

    @model_validator(mode="after")
    def _rules_have_an_output(self) -> Self:
        require_distinct(self.rules)
        for index, rule in enumerate(self.rules):
            if rule.output is not None and rule.output not in self.outputs:
                raise wrong(f"the stream has no such output; it has {listed(self.outputs)}", "rules", index, "output")
            if rule.output is None and len(self.outputs) > 1:
                raise wrong(f"say of which output: {listed(self.outputs)}", "rules", index, "output")
        return self

    @model_validator(mode="after")
    def _what_cannot_be_decoded_has_a_place(self) -> Self:
        for name, declared in self.inputs.items():
            if declared.declared_source.value is not None and not self.quarantine:
                sentence = "values that cannot be decoded go to the quarantine: write `quarantine: true`"
                raise wrong(sentence, "inputs", name, "stream", declared.declared_source.kind, "value")
            files = declared.declared_source.files
            if files is not None and files.on_malformed == "quarantine" and not self.quarantine:
                sentence = "lines that are put aside go to the quarantine: write `quarantine: true`"
                raise wrong(sentence, "inputs", name, "stream", "files", "on_malformed")
        return self

    @model_validator(mode="after")
    def _masks_and_retention_belong_to_a_quarantine(self) -> Self:
        for key in ("masked_columns", "quarantine_retention"):
            if getattr(self, key) and not self.quarantine:
                raise wrong("belongs to a stream with a quarantine: write `quarantine: true`", key)
        for name, declared in self.inputs.items() if self.masked_columns else ():
            source, files = declared.declared_source, declared.declared_source.files
            columns = source.value.columns if source.value is not None else files.columns if files is not None else ()
            if any(column.field is not None for column in columns):
                sentence = f"masks columns by their names, and the input {name} has columns with another `field`"
                raise wrong(sentence, "masked_columns")
        return self

    @model_validator(mode="after")
    def _rejected_rows_hold_what_is_staged(self) -> Self:
        if self.rejections_held_beyond is None:
            return self
        place = ("supervision", "max_rejected", "action")
        if not self.quarantine:
            raise wrong(
                "`hold` counts the rows of the quarantine, and the stream has none: write `quarantine: true`", *place
            )
        if any(declared.iceberg is None for declared in self.outputs.values()):
            raise wrong("`hold` keeps batches in their staging tables, and an output is no table: write `stop`", *place)
        if self.publish_every is not None:
            raise wrong("`hold` holds batches one by one, and `publish_every` publishes several together", *place)
        return self

    @model_validator(mode="after")
    def _query_has_one_result(self) -> Self:
        if self.transformation.sql is not None and len(self.outputs) > 1:
            raise wrong("a query has one result: several outputs need a Python function", "transformation", "sql")
        return self

    @model_validator(mode="after")
    def _outputs_agree_on_a_mode(self) -> Self:
        # Spark gives a query one output mode: rows that are appended are final, rows that are merged are updated.
        if len({declared.mode for declared in self.outputs.values()}) > 1:
            listed = ", ".join(f"{name} {declared.declared_mode}" for name, declared in self.outputs.items())
            raise wrong(f"one stream has one mode, got {listed}: make several streams of it", "outputs")
        return self

    @model_validator(mode="after")
    def _outputs_are_published_together(self) -> Self:
        # A batch is recorded as one, so all of its tables show it at the same time.
        tables = [declared.iceberg for declared in self.outputs.values() if declared.iceberg is not None]
        if len({table.publish_every for table in tables}) > 1:
            raise wrong("the tables of one stream are published together: write the same publish_every", "outputs")
        # Other outputs are written after the tables have the batch, and with Spark's own rows of it, which do not wait.
        others = [name for name, declared in self.outputs.items() if declared.iceberg is None]
        grouped = next((name for name, declared in self.outputs.items() if _is_grouped(declared)), None)
        if grouped is not None and others:
            sentence = (
                f"`{others[0]}` gets a batch only when the table has it, so batches cannot wait for each other: leave "
                f"this key out, or let a stream of its own read the table and write `{others[0]}`"
            )
            raise wrong(sentence, "outputs", grouped, "iceberg", "publish_every")
        return self

    @model_validator(mode="after")
    def _direct_delivery_stands_alone(self) -> Self:
        if self.direct_output is None:
            return self
        name = self.direct_output
        place = ("outputs", name, "iceberg", "delivery")
        if len(self.outputs) > 1:
            raise wrong("Spark's query has Iceberg's sink alone then: `direct` is for a stream with one output", *place)
        if self.quarantine:
            raise wrong("refused rows are a second output, which Iceberg's sink cannot take: write `staged`", *place)
        for source_name, declared in self.inputs.items():
            kafka = declared.declared_source.kafka
            if kafka is not None and kafka.on_data_loss == "count":
                sentence = "a loss is counted before a batch is handed over, which delivery `direct` never does"
                raise wrong(sentence, "inputs", source_name, "stream", "kafka", "on_data_loss")
            files = declared.declared_source.files
            if files is not None and files.afterwards != "keep":
                sentence = "a file is put away when the next batch is handed over, which delivery `direct` never does"
                raise wrong(sentence, "inputs", source_name, "stream", "files", "afterwards")
        return self

    @property
    def direct_output(self) -> str | None:
        """The output that Iceberg's own sink writes; none when batches are handed over."""
        tables = ((name, declared.iceberg) for name, declared in self.outputs.items())
        return next((name for name, table in tables if table is not None and table.is_direct), None)

    @property
    def rejections_held_beyond(self) -> RejectionLimit | None:
        """The limit of rejected rows beyond which a batch is held; unset when none is held for that."""
        limit = self.supervision.max_rejected
        return limit if limit is not None and limit.action == "hold" else None

    @property
    def publish_every(self) -> timedelta | None:
        """How long staged batches wait to be published together; unset when each becomes visible by itself."""
        tables = (declared.iceberg for declared in self.outputs.values())
        return next((table.publish_every for table in tables if table is not None), None)

    @property
    def hands_on_records(self) -> bool:
        """Whether its trigger hands records on one by one, so that it has no batches."""
        return self.trigger is not None and self.trigger.kind in RECORD_TRIGGERS

    @property
    def code_files(self) -> tuple[str, ...]:
        """The files beside the declaration whose code a run executes: the transformation's, and those of outputs."""
        functions = (declared.python.function for declared in self.outputs.values() if declared.python is not None)
        names = (self.transformation.file_name, *(function.partition(":")[0] for function in functions))
        return tuple(dict.fromkeys(names))

    @property
    def runs_python(self) -> bool:
        """Whether a run executes Python code of the team's own: of the transformation, or of an output."""
        return any(name.endswith(".py") for name in self.code_files)

    @property
    def masked_names(self) -> frozenset[str]:
        """The columns of which something is masked, in lower case."""
        return frozenset(path.partition(".")[0].lower() for path in self.masked_columns)

    @property
    def quarantine_table(self) -> str:
        """The table of the rows that this stream rejects."""
        return f"{QUARANTINE_NAMESPACE}.{self.stream}"

    @property
    def decodes(self) -> bool:
        """Whether the values or lines of an input are decoded, so that the platform itself rejects rows."""
        sources = [declared.declared_source for declared in self.inputs.values()]
        return any(source.value is not None for source in sources) or any(
            source.files is not None and source.files.on_malformed == "quarantine" for source in sources
        )

    @property
    def refuses_by_itself(self) -> bool:
        """Whether the platform itself rejects rows, so that the transformation need not return any: values that cannot
        be decoded, and changes of a feed whose operation is not declared."""
        tables = [declared.iceberg for declared in self.outputs.values() if declared.iceberg is not None]
        return self.decodes or any(table.operation_column is not None for table in tables)

    @property
    def uses_delta(self) -> bool:
        """Whether an input or an output is a Delta table."""
        sources = (declared.declared_source.kind for declared in self.inputs.values())
        return "delta" in (*sources, *(declared.kind for declared in self.outputs.values()))

    @property
    def tables_read(self) -> tuple[str, ...]:
        """The Iceberg tables that the inputs read, in the order of the inputs."""
        sources = (declared.declared_source.source for declared in self.inputs.values())
        return tuple(source.table for source in sources if isinstance(source, IcebergSource))

    @property
    def tables_written(self) -> tuple[str, ...]:
        """The Iceberg tables that the outputs write, in the order of the outputs; the quarantine is not among them."""
        outputs = (declared.output for declared in self.outputs.values())
        return tuple(output.table for output in outputs if isinstance(output, IcebergOutput))

    @property
    def tables_named(self) -> frozenset[str]:
        """Every Iceberg table that this declaration names: read, written, or waited for."""
        waited_for = self.schedule.tables if self.schedule is not None else ()
        return frozenset((*self.tables_read, *self.tables_written, *waited_for))
