"""What a driver's Python reports when the connection to its JVM breaks: with py4j itself, and no JVM behind it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from sluice.errors import JvmKilledError, JvmLostError, LakehouseError
from sluice.failure_reasons import FailureReason
from sluice.failures.classification import classify
from sluice.failures.error_chains import chain_of
from sluice_spark.run import job
from sluice_spark.run.job import error_before_loss, named_jvm_loss, reason_of


def refused() -> object:
    """A call to a JVM that is gone: nothing listens where it did."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gateway = ClientServer(
        java_parameters=JavaParameters(port=port, auto_convert=True), python_parameters=PythonParameters(port=0)
    )
    try:
        return gateway.jvm.java.lang.System.currentTimeMillis()
    finally:
        gateway.shutdown_callback_server()


def broken_off() -> object:
    """A call whose JVM dies before it answers: the connection is closed."""

    def close_every_connection() -> None:
        with suppress(OSError):  # the server is closed
            while True:
                jvm.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as jvm:
        threading.Thread(target=close_every_connection, daemon=True).start()
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=jvm.getsockname()[1]))
        return gateway.jvm.java.lang.System.currentTimeMillis()


def raised_by(work: Callable[[], object]) -> Exception:
    """What a function raises."""
    raised: pytest.ExceptionInfo[Exception]
    with pytest.raises((OSError, Py4JError)) as raised:
        work()
    return raised.value


@pytest.fixture(autouse=True)
def _without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_ENDED_WITHIN_SECONDS", 0.0)
    monkeypatch.setattr(job, "_ATTENDANT_SECONDS", 0.0)


def test_a_refused_connection_to_the_jvm_is_no_service_that_is_unreachable() -> None:
    error = raised_by(refused)
    assert error_before_loss(error, is_gone=False) is None
    with pytest.raises(JvmLostError) as named, named_jvm_loss():
        raise error
    assert classify(chain_of(named.value)).reason is FailureReason.DRIVER_LOST, "its JVM, our parent, lives"


def test_what_py4j_says_of_a_missing_method_is_no_loss_while_the_jvm_lives() -> None:
    error = raised_by(broken_off)
    assert type(error) is Py4JError, "py4j logs the broken connection and drops it"
    with pytest.raises(Py4JError) as raised, named_jvm_loss():
        raise error
    assert raised.value is error


@pytest.mark.parametrize("lose", [refused, broken_off])
def test_a_jvm_that_is_gone_was_killed(lose: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    error = raised_by(lose)
    monkeypatch.setattr(job._Jvm, "is_gone", lambda _: True)
    with pytest.raises(JvmKilledError) as named, named_jvm_loss():
        raise LakehouseError("the table could not be written") from error
    assert classify(chain_of(named.value)).reason is FailureReason.DRIVER_KILLED


@pytest.mark.parametrize("lose", [refused, broken_off])
def test_what_ended_the_run_before_keeps_its_name(lose: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run fails, and its JVM is killed while the run cleans up."""

    monkeypatch.setattr(job._Jvm, "is_gone", lambda _: True)

    def fail_and_clean_up() -> None:
        try:
            raise ConnectionRefusedError("the catalog")
        finally:
            lose()

    with pytest.raises(ConnectionRefusedError, match="the catalog") as raised, named_jvm_loss():
        fail_and_clean_up()
    assert classify(chain_of(raised.value)).reason is FailureReason.NETWORK_UNREACHABLE


def test_an_error_that_cannot_be_asked_for_its_text_any_more_is_still_reported() -> None:
    """py4j asks the JVM for the text of a Java exception: a run that cannot record its end looks alive."""

    class JavaError(Exception):
        def __str__(self) -> str:
            raise raised_by(refused)

    assert reason_of(JavaError()) == "JavaError: "


def test_the_reason_is_the_error_of_java_and_not_the_call_that_raised_it() -> None:
    text = "An error occurred while calling o1.load.\n: org.postgresql.util.PSQLException: It was refused.\n"

    assert reason_of(RuntimeError(text)) == "PSQLException: It was refused."


def test_a_refused_connection_to_another_service_is_left_alone() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    with pytest.raises(ConnectionRefusedError) as raised, named_jvm_loss():
        socket.create_connection(address)
    assert error_before_loss(raised.value, is_gone=True) is raised.value
