"""Which class of failure ended a run, and for which reason: derived from the chain of its errors. Pure.

The rules are tried in this order, and the first match decides:

1. the errors of Sluice that carry a reason (`SluiceError.failure_reason`: `StaleTokenError` …);
2. conditions and classes of errors, of Spark, Java, Kafka, Iceberg, AWS, PostgreSQL and Python, from the most specific
   (`OutOfMemoryError`) to the least (`AnalysisException`); for a failed connection the packages of the other errors of
   the chain show which service it was;
3. texts, where a library raises one class for everything;
4. the errors of Sluice that only say where the failure happened (`SluiceError.fallback_reason`: `LakehouseError` …).

A failure that no rule matches is `unknown`: the stream is restarted as declared. Every rule exists because of a failure
that was provoked: `tests/unit/failures/corpus` holds what was raised, and how.

Names of classes stand without their package: some libraries on Spark's class path are shaded, and a class keeps its
name then. Conditions are Spark's (https://spark.apache.org/docs/latest/sql-error-conditions.html), SQLSTATEs, names of
errno, and error codes of S3; one that ends with a dot means all that begin with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from sluice.errors import ERROR_CLASSES, SluiceError
from sluice.failure_reasons import Failure, FailureReason
from sluice.failures.error_chains import ErrorChain, ErrorLink
from sluice.ledger.run_values import RunObservation, RunState

_Item = TypeVar("_Item")
_Reason = FailureReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The errors that mean one reason. kinds: names of classes. conditions: codes. text: a pattern in the message."""

    reason: FailureReason
    kinds: frozenset[str] = frozenset()
    conditions: tuple[str, ...] = ()
    text: re.Pattern[str] | None = None

    def matches(self, link: ErrorLink) -> bool:
        """Whether an error means this reason."""
        if link.name in self.kinds or any(_is_of(link.condition, condition) for condition in self.conditions):
            return True
        return self.text is not None and self.text.search(link.message) is not None

    def matches_any(self, chain: ErrorChain) -> bool:
        """Whether one error of a chain means this reason."""
        return any(self.matches(link) for link in chain)


def _kinds(reason: FailureReason, names: str) -> Rule:
    return Rule(reason=reason, kinds=frozenset(names.split()))


def _conditions(reason: FailureReason, conditions: str) -> Rule:
    return Rule(reason=reason, conditions=tuple(conditions.split()))


def _text(reason: FailureReason, pattern: str) -> Rule:
    return Rule(reason=reason, text=re.compile(pattern, re.IGNORECASE))


def _is_of(condition: str, pattern: str) -> bool:
    return condition == pattern or (pattern.endswith(".") and condition.startswith((pattern, pattern[:-1])))


CONDITIONS: tuple[Rule, ...] = (
    _conditions(_Reason.DISK_FULL, "ENOSPC EDQUOT 53100"),
    _conditions(_Reason.TOO_MANY_FILES, "EMFILE ENFILE"),
    _conditions(_Reason.OUT_OF_MEMORY, "ENOMEM UNABLE_TO_ACQUIRE_MEMORY 53200"),
    _conditions(_Reason.OFFSETS_LOST, "KAFKA_DATA_LOSS. KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"),
    _conditions(_Reason.FILE_VANISHED, "FAILED_READ_FILE.FILE_NOT_EXIST FAILED_READ_FILE.DBR_FILE_NOT_EXIST"),
    _conditions(
        _Reason.MALFORMED_RECORD,
        "MALFORMED_RECORD_IN_PARSING. MALFORMED_CSV_RECORD INVALID_JSON_ROOT_FIELD FAILED_READ_FILE.",
    ),
    _conditions(_Reason.AMBIGUOUS_MERGE, "MERGE_CARDINALITY_VIOLATION"),
    _conditions(
        _Reason.VALUE_REFUSED,
        "CAST_INVALID_INPUT CAST_OVERFLOW CAST_OVERFLOW_IN_TABLE_INSERT CANNOT_PARSE_TIMESTAMP CANNOT_PARSE_DECIMAL "
        "DIVIDE_BY_ZERO REMAINDER_BY_ZERO ARITHMETIC_OVERFLOW NUMERIC_VALUE_OUT_OF_RANGE. INVALID_ARRAY_INDEX "
        "INVALID_ARRAY_INDEX_IN_ELEMENT_AT DATETIME_OVERFLOW NOT_NULL_ASSERT_VIOLATION NULL_MAP_KEY "
        "DUPLICATED_MAP_KEY USER_RAISED_EXCEPTION",
    ),
    _conditions(_Reason.COLUMN_MISSING, "UNRESOLVED_COLUMN. UNRESOLVED_FIELD. FIELD_NOT_FOUND"),
    _conditions(
        _Reason.SCHEMA_DIFFERS,
        "INCOMPATIBLE_DATA_FOR_TABLE. INSERT_COLUMN_ARITY_MISMATCH. NOT_ENOUGH_DATA_COLUMNS TOO_MANY_DATA_COLUMNS "
        "NUM_COLUMNS_MISMATCH",
    ),
    _conditions(_Reason.TABLE_MISSING, "TABLE_OR_VIEW_NOT_FOUND SCHEMA_NOT_FOUND TABLE_OR_VIEW_NOT_FOUND_IN_NAMESPACE"),
    _conditions(
        _Reason.QUERY_CHANGED,
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE "
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE STATE_STORE_SCHEMA_NOT_COMPATIBLE",
    ),
    _conditions(
        _Reason.CHECKPOINT_DAMAGED,
        "CANNOT_LOAD_STATE_STORE. STATE_STORE_COMMIT_VALIDATION_FAILED MISSING_METADATA_FILE INVALID_LOG_VERSION. "
        "STATE_DATA_SOURCE.",
    ),
    _conditions(_Reason.ACCESS_REFUSED, "AccessDenied InvalidAccessKeyId SignatureDoesNotMatch 28P01"),
    _conditions(_Reason.SERVICE_BUSY, "SlowDown 53300 ServiceUnavailable"),
)
"""By code, the most reliable evidence: a code is the same in every version and language."""

KINDS: tuple[Rule, ...] = (
    _kinds(_Reason.OUT_OF_MEMORY, "OutOfMemoryError MemoryError SparkOutOfMemoryError"),
    _kinds(_Reason.OFFSETS_LOST, "OffsetOutOfRangeException KafkaIllegalStateException KafkaDataLossException"),
    _kinds(_Reason.SOURCE_MISSING, "UnknownTopicOrPartitionException UnknownTopicIdException"),
    _kinds(
        _Reason.ACCESS_REFUSED,
        "NotAuthorizedException ForbiddenException AccessDeniedException AuthorizationException "
        "TopicAuthorizationException SaslAuthenticationException SslAuthenticationException UnauthorizedError "
        "ForbiddenError OAuthError NoCredentialsError",
    ),
    _kinds(
        _Reason.SERVICE_BUSY,
        "ServiceUnavailableException ServiceUnavailableError SlowDownException ThrottlingException",
    ),
    _kinds(_Reason.COMMIT_UNCERTAIN, "CommitStateUnknownException"),
    _kinds(_Reason.COMMIT_CONFLICT, "CommitFailedException ConcurrentAppendException"),
    _kinds(_Reason.TABLE_MISSING, "NoSuchTableException NoSuchTableError NoSuchNamespaceError"),
    _kinds(_Reason.MALFORMED_RECORD, "BadRecordException MalformedInputException JsonParseException"),
    _kinds(_Reason.WORKER_DIED, "PythonWorkerException"),
    _kinds(_Reason.DRIVER_LOST, "Py4JNetworkError"),  # the JVM beside the driver's Python has ended
)
"""By class."""

UNREACHABLE = _kinds(
    _Reason.NETWORK_UNREACHABLE,
    "ConnectException ConnectionException HttpHostConnectException UnknownHostException NoRouteToHostException "
    "SocketException SocketTimeoutException NoHttpResponseException ConnectTimeoutException ConnectionRefusedError "
    "ConnectionResetError ConnectionAbortedError BrokenPipeError ConnectionError ConnectTimeout ReadTimeout "
    "NewConnectionError MaxRetryError EndpointConnectionError ConnectTimeoutError URLError gaierror "
    "DisconnectException BrokerNotAvailableException OperationalError RESTException",
)
"""A service does not answer; the packages of the chain show which one."""

SERVICES: tuple[tuple[str, FailureReason], ...] = (
    ("kafka", _Reason.KAFKA_UNREACHABLE),
    ("awssdk.", _Reason.OBJECT_STORE_UNREACHABLE),
    ("s3a", _Reason.OBJECT_STORE_UNREACHABLE),
    ("botocore", _Reason.OBJECT_STORE_UNREACHABLE),
    ("psycopg", _Reason.LEDGER_UNREACHABLE),
    ("iceberg.", _Reason.CATALOG_UNREACHABLE),
    ("sluice.errors.LakehouseError", _Reason.CATALOG_UNREACHABLE),
)
"""The service of a package. The first one in the chain counts, so the object store precedes the catalog's client."""

CODE: tuple[Rule, ...] = (
    _kinds(
        _Reason.TRANSFORMATION_FAILED,
        "PythonException ArithmeticError AssertionError AttributeError ImportError IndexError IndentationError "
        "KeyError LookupError ModuleNotFoundError NameError NotImplementedError RecursionError SyntaxError TypeError "
        "UnboundLocalError ValueError ZeroDivisionError PySparkTypeError PySparkValueError PySparkAttributeError",
    ),
    _kinds(_Reason.QUERY_REFUSED, "AnalysisException ParseException UnsupportedOperationException"),
)
"""By class, when no other error caused it: the code of the stream is wrong."""

TEXTS: tuple[Rule, ...] = (
    _text(_Reason.OUT_OF_MEMORY, r"OutOfMemoryError|Java heap space|GC overhead limit|Cannot allocate memory"),
    _text(_Reason.DISK_FULL, r"No space left on device|Disk quota exceeded"),
    _text(_Reason.TOO_MANY_FILES, r"Too many open files"),
    _text(_Reason.WORKER_DIED, r"Python worker (exited unexpectedly|failed to connect back)"),
    _text(
        _Reason.KAFKA_UNREACHABLE,
        r"Timed out waiting for a node assignment|bootstrap\.servers|Timeout of \d+ms expired before the position",
    ),
    _text(_Reason.OFFSETS_LOST, r"Some data may have been lost|offset was changed from \d+ to|offsets? out of range"),
    _text(
        _Reason.SNAPSHOT_EXPIRED,
        r"snapshot (\S+ )?(has expired|was expired|expired or|is not an ancestor)|Cannot find snapshot",
    ),
    _text(_Reason.SCHEMA_DIFFERS, r"does not fit the table"),
    _text(
        _Reason.CHECKPOINT_DAMAGED,
        r"^batch \d+ doesn't exist|Checksum error: \S*/(metadata|(offsets|commits|state|sources)/)",
    ),
    _text(_Reason.CHECKPOINT_FOREIGN, r"(belongs to|registered for) query \S+ got \S+"),
    _text(_Reason.FILE_VANISHED, r"Location does not exist|NoSuchKey|File does not exist"),
    _text(
        _Reason.COMMIT_CONFLICT,
        r"Found conflicting files|conflicting (delete|data) files|Missing required files to delete",
    ),
    _text(
        _Reason.ACCESS_REFUSED,
        r"Status Code: 40[13]\b|\b40[13] (Unauthorized|Forbidden)"
        r"|^The folder .+ cannot be .+: (Permission denied|Operation not permitted)",
    ),
    _text(_Reason.SERVICE_BUSY, r"Status Code: (429|50[23])\b|\b503 Server Error|Service Unavailable"),
    _text(_Reason.TABLE_MISSING, r"\bTable (\S+ )?does not exist"),
    _text(_Reason.NETWORK_UNREACHABLE, r"Connection refused|Connection reset|Name or service not known"),
    _text(_Reason.TIMED_OUT, r"timed out"),
)
"""By the text of a message, where its class says nothing."""


def classify(chain: ErrorChain) -> Failure:
    """Return the class and the reason of a failure.

    Parameters
    ----------
    chain: its errors, the outermost first; empty when none was recorded.
    """
    for find in (_own_reason, _reason_by_class, _reason_by_text, _fallback_reason):
        reason = find(chain)
        if reason is not None:
            return Failure.of(reason)
    return Failure.of(FailureReason.UNEXPLAINED)


def failure_of_exit(exit_code: int | None, *, state: RunState, reason: str) -> Failure:
    """Return the failure of a driver that did not report itself why it failed.

    Parameters
    ----------
    exit_code: the exit status that its parent saw: negative, or above 128, when a signal ended it; unset when unknown.
    state: the state of the ended run in the ledger.
    reason: the sentence in the ledger, which may begin with the class of an error.
    """
    if state is RunState.LOST:
        return Failure.of(FailureReason.DRIVER_LOST)
    if reason.startswith("killed by "):
        return Failure.of(FailureReason.DRIVER_KILLED)
    if exit_code == 0:
        return Failure.of(FailureReason.ENDED_BY_ITSELF)
    kind, colon, message = reason.partition(": ")
    is_error = bool(colon) and kind.isidentifier()
    return classify((ErrorLink(kind=kind, message=message) if is_error else ErrorLink(kind="", message=reason),))


def failure_of_run(run: RunObservation) -> Failure:
    """Return why a run ended: the recorded failure, or else the one that its exit suggests."""
    if run.failure is not None:
        return run.failure
    return failure_of_exit(run.exit_code, state=run.state, reason=run.reason or "")


def _own_reason(chain: ErrorChain) -> FailureReason | None:
    return _first(chain, lambda link: None if (error := _error_class(link)) is None else error.failure_reason)


def _fallback_reason(chain: ErrorChain) -> FailureReason | None:
    return _first(chain, lambda link: None if (error := _error_class(link)) is None else error.fallback_reason)


def _error_class(link: ErrorLink) -> type[SluiceError] | None:
    """The error of Sluice: by its package, or in the last line of a driver's log, which leaves the package out."""
    is_own = link.kind.startswith("sluice.") or "." not in link.kind
    return ERROR_CLASSES.get(link.name) if is_own else None


def _reason_by_class(chain: ErrorChain) -> FailureReason | None:
    if (reason := _by_rules((*CONDITIONS, *KINDS), chain)) is not None:
        return reason
    return _unreachable_service(chain) if UNREACHABLE.matches_any(chain) else _by_rules(CODE, chain)


def _unreachable_service(chain: ErrorChain) -> FailureReason:
    """Find the service of a failed connection by the packages of the errors around it."""
    kinds = " ".join(link.kind for link in chain)
    return next((reason for package, reason in SERVICES if package in kinds), FailureReason.NETWORK_UNREACHABLE)


def _reason_by_text(chain: ErrorChain) -> FailureReason | None:
    return _by_rules(TEXTS, chain)


def _by_rules(rules: Iterable[Rule], chain: ErrorChain) -> FailureReason | None:
    return _first(rules, lambda rule: rule.reason if rule.matches_any(chain) else None)


def _first(items: Iterable[_Item], find: Callable[[_Item], FailureReason | None]) -> FailureReason | None:
    return next((reason for item in items if (reason := find(item)) is not None), None)
