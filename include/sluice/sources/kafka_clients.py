"""The settings of Kafka clients for a Kafka connection: of the Java client in Spark, and of librdkafka.

Sources: https://kafka.apache.org/43/configuration/consumer-configs/ and
https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

from __future__ import annotations

from sluice.settings import KafkaConnection

ClientSettings = dict[str, str | int | float | bool]
"""What a confluent-kafka client is made with."""

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def spark_options(connection: KafkaConnection) -> dict[str, str]:
    """The connection options of Spark's Kafka source and sink. Spark redacts the option with the password."""
    options = {
        "bootstrap.servers": connection.bootstrap_servers,
        "security.protocol": connection.security_protocol,
        "sasl.mechanism": connection.sasl_mechanism,
        "sasl.jaas.config": _jaas_config(connection),
        "ssl.truststore.type": "PEM" if connection.ca_file else None,
        "ssl.truststore.location": _text(connection.ca_file),
        "ssl.keystore.type": "PEM" if connection.client_certificate_file else None,
        "ssl.keystore.location": _text(connection.client_certificate_file),
    }
    return {f"kafka.{name}": value for name, value in options.items() if value is not None}


def client_settings(connection: KafkaConnection) -> ClientSettings:
    """The connection settings of a confluent-kafka client."""
    certificate = _text(connection.client_certificate_file)
    settings = {
        "bootstrap.servers": connection.bootstrap_servers,
        "security.protocol": connection.security_protocol,
        "sasl.mechanism": connection.sasl_mechanism,
        "sasl.username": connection.username,
        "sasl.password": connection.password.get_secret_value() if connection.password else None,
        "ssl.ca.location": _text(connection.ca_file),
        "ssl.certificate.location": certificate,
        "ssl.key.location": certificate,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _jaas_config(connection: KafkaConnection) -> str | None:
    if connection.sasl_mechanism is None or connection.username is None or connection.password is None:
        return None
    user, password = (_quoted(text) for text in (connection.username, connection.password.get_secret_value()))
    return f"{_LOGIN_MODULES[connection.sasl_mechanism]} required username={user} password={password};"


def _quoted(text: str) -> str:
    """A quoted string in the syntax of JAAS, in which a backslash escapes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(value: object) -> str | None:
    return None if value is None else str(value)
