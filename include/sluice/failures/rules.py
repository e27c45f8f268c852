"""The rules by which errors are told apart: tables of classes, conditions and texts, and the order in which they count.

Names of classes stand without their package: the libraries on Spark's class path are shaded here and there, and a class
keeps its name then. Conditions are Spark's (https://spark.apache.org/docs/latest/sql-error-conditions.html), SQLSTATEs,
names of errno, and error codes of S3; one that ends with a dot means all that begin with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.errors import FailureReason
from sluice.failures.error_chains import ErrorChain, ErrorLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One reason, and the errors that tell it. kinds: names of classes. conditions: codes. text: within a message."""

    reason: FailureReason
    kinds: frozenset[str] = frozenset()
    conditions: tuple[str, ...] = ()
    text: re.Pattern[str] | None = field(default=None)

    def knows(self, link: ErrorLink) -> bool:
        """Whether an error tells this reason."""
        if link.name in self.kinds or any(_is_of(link.condition, condition) for condition in self.conditions):
            return True
        return self.text is not None and self.text.search(link.message) is not None


def _kinds(reason: FailureReason, *names: str) -> Rule:
    return Rule(reason=reason, kinds=frozenset(names))


def _conditions(reason: FailureReason, *conditions: str) -> Rule:
    return Rule(reason=reason, conditions=conditions)


def _text(reason: FailureReason, pattern: str) -> Rule:
    return Rule(reason=reason, text=re.compile(pattern, re.IGNORECASE))


def _is_of(condition: str, wanted: str) -> bool:
    return condition == wanted or (wanted.endswith(".") and condition.startswith((wanted, wanted[:-1])))


CONDITIONS: tuple[Rule, ...] = (
    _conditions(FailureReason.DISK_FULL, "ENOSPC", "EDQUOT", "53100"),
    _conditions(FailureReason.TOO_MANY_FILES, "EMFILE", "ENFILE"),
    _conditions(FailureReason.OUT_OF_MEMORY, "ENOMEM", "UNABLE_TO_ACQUIRE_MEMORY", "53200"),
    _conditions(FailureReason.OFFSETS_LOST, "KAFKA_DATA_LOSS.", "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"),
    _conditions(FailureReason.FILE_VANISHED, "FAILED_READ_FILE.FILE_NOT_EXIST", "FAILED_READ_FILE.DBR_FILE_NOT_EXIST"),
    _conditions(
        FailureReason.MALFORMED_RECORD,
        "MALFORMED_RECORD_IN_PARSING.",
        "MALFORMED_CSV_RECORD",
        "INVALID_JSON_ROOT_FIELD",
        "FAILED_READ_FILE.",
    ),
    _conditions(FailureReason.AMBIGUOUS_MERGE, "MERGE_CARDINALITY_VIOLATION"),
    _conditions(
        FailureReason.VALUE_REFUSED,
        "CAST_INVALID_INPUT",
        "CAST_OVERFLOW",
        "CAST_OVERFLOW_IN_TABLE_INSERT",
        "CANNOT_PARSE_TIMESTAMP",
        "CANNOT_PARSE_DECIMAL",
        "DIVIDE_BY_ZERO",
        "REMAINDER_BY_ZERO",
        "ARITHMETIC_OVERFLOW",
        "NUMERIC_VALUE_OUT_OF_RANGE.",
        "INVALID_ARRAY_INDEX",
        "INVALID_ARRAY_INDEX_IN_ELEMENT_AT",
        "DATETIME_OVERFLOW",
        "NOT_NULL_ASSERT_VIOLATION",
        "NULL_MAP_KEY",
        "DUPLICATED_MAP_KEY",
        "USER_RAISED_EXCEPTION",
    ),
    _conditions(FailureReason.COLUMN_MISSING, "UNRESOLVED_COLUMN.", "UNRESOLVED_FIELD.", "FIELD_NOT_FOUND"),
    _conditions(
        FailureReason.SCHEMA_DIFFERS,
        "INCOMPATIBLE_DATA_FOR_TABLE.",
        "INSERT_COLUMN_ARITY_MISMATCH.",
        "NOT_ENOUGH_DATA_COLUMNS",
        "TOO_MANY_DATA_COLUMNS",
        "NUM_COLUMNS_MISMATCH",
    ),
    _conditions(
        FailureReason.TABLE_MISSING,
        "TABLE_OR_VIEW_NOT_FOUND",
        "SCHEMA_NOT_FOUND",
        "TABLE_OR_VIEW_NOT_FOUND_IN_NAMESPACE",
    ),
    _conditions(
        FailureReason.QUERY_CHANGED,
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
        "STATE_STORE_SCHEMA_NOT_COMPATIBLE",
    ),
    _conditions(
        FailureReason.CHECKPOINT_DAMAGED,
        "CANNOT_LOAD_STATE_STORE.",
        "STATE_STORE_COMMIT_VALIDATION_FAILED",
        "MISSING_METADATA_FILE",
        "INVALID_LOG_VERSION.",
        "STATE_DATA_SOURCE.",
    ),
    _conditions(FailureReason.ACCESS_REFUSED, "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "28P01"),
    _conditions(FailureReason.SERVICE_BUSY, "SlowDown", "53300", "ServiceUnavailable"),
)
"""By code, which says most: the same in every version and language."""

KINDS: tuple[Rule, ...] = (
    _kinds(FailureReason.OUT_OF_MEMORY, "OutOfMemoryError", "MemoryError", "SparkOutOfMemoryError"),
    _kinds(
        FailureReason.OFFSETS_LOST,
        "OffsetOutOfRangeException",
        "KafkaIllegalStateException",
        "KafkaDataLossException",
    ),
    _kinds(FailureReason.SOURCE_MISSING, "UnknownTopicOrPartitionException", "UnknownTopicIdException"),
    _kinds(
        FailureReason.ACCESS_REFUSED,
        "NotAuthorizedException",
        "ForbiddenException",
        "AccessDeniedException",
        "AuthorizationException",
        "TopicAuthorizationException",
        "SaslAuthenticationException",
        "SslAuthenticationException",
        "UnauthorizedError",
        "ForbiddenError",
        "OAuthError",
        "NoCredentialsError",
    ),
    _kinds(
        FailureReason.SERVICE_BUSY,
        "ServiceUnavailableException",
        "ServiceUnavailableError",
        "SlowDownException",
        "ThrottlingException",
    ),
    _kinds(FailureReason.COMMIT_UNCERTAIN, "CommitStateUnknownException"),
    _kinds(FailureReason.COMMIT_CONFLICT, "CommitFailedException", "ConcurrentAppendException"),
    _kinds(FailureReason.TABLE_MISSING, "NoSuchTableException", "NoSuchTableError", "NoSuchNamespaceError"),
    _kinds(FailureReason.MALFORMED_RECORD, "BadRecordException", "MalformedInputException", "JsonParseException"),
    _kinds(FailureReason.WORKER_DIED, "PythonWorkerException"),
    _kinds(FailureReason.DRIVER_LOST, "Py4JNetworkError"),  # the JVM beside the driver's Python has ended
)
"""By class."""

UNREACHABLE = _kinds(
    FailureReason.NETWORK_UNREACHABLE,
    "ConnectException",
    "ConnectionException",
    "HttpHostConnectException",
    "UnknownHostException",
    "NoRouteToHostException",
    "SocketException",
    "SocketTimeoutException",
    "NoHttpResponseException",
    "ConnectTimeoutException",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "ConnectionAbortedError",
    "BrokenPipeError",
    "ConnectionError",
    "ConnectTimeout",
    "ReadTimeout",
    "NewConnectionError",
    "MaxRetryError",
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "URLError",
    "gaierror",
    "DisconnectException",
    "BrokerNotAvailableException",
    "OperationalError",
    "RESTException",
)
"""Something does not answer; `service_of` says what."""

CODE: tuple[Rule, ...] = (
    _kinds(
        FailureReason.TRANSFORMATION_FAILED,
        "PythonException",
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "ImportError",
        "IndexError",
        "IndentationError",
        "KeyError",
        "LookupError",
        "ModuleNotFoundError",
        "NameError",
        "NotImplementedError",
        "RecursionError",
        "SyntaxError",
        "TypeError",
        "UnboundLocalError",
        "ValueError",
        "ZeroDivisionError",
        "PySparkTypeError",
        "PySparkValueError",
        "PySparkAttributeError",
    ),
    _kinds(FailureReason.QUERY_REFUSED, "AnalysisException", "ParseException", "UnsupportedOperationException"),
)
"""By class, when nothing else has caused it: what is written is wrong."""

TEXTS: tuple[Rule, ...] = (
    _text(FailureReason.OUT_OF_MEMORY, r"OutOfMemoryError|Java heap space|GC overhead limit|Cannot allocate memory"),
    _text(FailureReason.DISK_FULL, r"No space left on device|Disk quota exceeded"),
    _text(FailureReason.TOO_MANY_FILES, r"Too many open files"),
    _text(FailureReason.WORKER_DIED, r"Python worker (exited unexpectedly|failed to connect back)"),
    _text(
        FailureReason.KAFKA_UNREACHABLE,
        r"Timed out waiting for a node assignment|bootstrap\.servers|Timeout of \d+ms expired before the position",
    ),
    _text(
        FailureReason.OFFSETS_LOST, r"Some data may have been lost|offset was changed from \d+ to|offsets? out of range"
    ),
    _text(
        FailureReason.SNAPSHOT_EXPIRED,
        r"snapshot (\S+ )?(has expired|was expired|expired or|is not an ancestor)|Cannot find snapshot",
    ),
    _text(FailureReason.SCHEMA_DIFFERS, r"does not fit the table"),
    _text(FailureReason.CHECKPOINT_FOREIGN, r"(belongs to|registered for) query \S+ got \S+"),
    _text(FailureReason.FILE_VANISHED, r"Location does not exist|NoSuchKey|File does not exist"),
    _text(
        FailureReason.COMMIT_CONFLICT,
        r"Found conflicting files|conflicting (delete|data) files|Missing required files to delete",
    ),
    _text(FailureReason.ACCESS_REFUSED, r"Status Code: 40[13]\b|\b40[13] (Unauthorized|Forbidden)"),
    _text(FailureReason.SERVICE_BUSY, r"Status Code: (429|50[23])\b|\b503 Server Error|Service Unavailable"),
    _text(FailureReason.TABLE_MISSING, r"\bTable (\S+ )?does not exist"),
    _text(FailureReason.NETWORK_UNREACHABLE, r"Connection refused|Connection reset|Name or service not known"),
    _text(FailureReason.TIMED_OUT, r"timed out"),
)
"""By what a message says, where its class says nothing."""

WRAPPERS: Mapping[str, FailureReason] = {
    "CheckpointError": FailureReason.CHECKPOINT_DAMAGED,
    "DeclarationError": FailureReason.DECLARATION_REFUSED,
    "NotYetError": FailureReason.DECLARATION_REFUSED,
    "LedgerError": FailureReason.SETTINGS_REFUSED,
    "RegistryError": FailureReason.DECLARATION_REFUSED,
    "LakehouseError": FailureReason.CATALOG_UNREACHABLE,
    "StackError": FailureReason.NETWORK_UNREACHABLE,
}
"""What is left to say when only the place is known."""

_SERVICES: tuple[tuple[str, FailureReason], ...] = (
    ("kafka", FailureReason.KAFKA_UNREACHABLE),
    ("awssdk.", FailureReason.OBJECT_STORE_UNREACHABLE),
    ("s3a", FailureReason.OBJECT_STORE_UNREACHABLE),
    ("botocore", FailureReason.OBJECT_STORE_UNREACHABLE),
    ("psycopg", FailureReason.LEDGER_UNREACHABLE),
    ("iceberg.", FailureReason.CATALOG_UNREACHABLE),
    ("sluice.errors.LakehouseError", FailureReason.CATALOG_UNREACHABLE),
)
"""By whose package an error is; the first that is met counts, so the object store goes before the catalog's client."""


def service_of(chain: ErrorChain) -> FailureReason:
    """Which service cannot be reached, told from the packages of the errors around the failed connection."""
    kinds = " ".join(link.kind for link in chain)
    for package, reason in _SERVICES:
        if package in kinds:
            return reason
    return FailureReason.NETWORK_UNREACHABLE
