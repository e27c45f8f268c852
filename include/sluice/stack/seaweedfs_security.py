"""The security of SeaweedFS's own ports: master, volume, filer, admin and gRPC answer only SeaweedFS itself.

Purpose: S3 and the Iceberg catalog ask for credentials, the other ports of SeaweedFS do not. Through them every user of
the machine, and every web page in a browser on it, could read all files.
How it works: these ports speak TLS and require a client certificate. There is one certificate, which trusts itself; its
key lies in a private folder, so only SeaweedFS's own process has it. A browser has none, whatever `Host` or `Origin` it
sends. The files are written again before each start, so nothing expires and nothing has to be renewed.
What it does not do: S3 and the Iceberg catalog stay plain HTTP with credentials.

`python -m sluice.stack.seaweedfs_security FOLDER HOST` writes the same files for docker-compose.yaml.
Source: `weed scaffold -config=security`, SeaweedFS 4.48.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sluice.stack.folder import write_private

_LIFETIME = timedelta(days=3650)
"""Longer than any process of a stack runs."""

_GRPC_PARTS = ("master", "volume", "filer", "s3", "admin", "worker", "client")
_HTTPS_PARTS = ("master", "volume", "filer", "admin")


def write_security(folder: Path, *, host: str) -> None:
    """Write `security.toml` and the certificate that it names, readable by their owner alone.

    Parameters
    ----------
    folder: an existing folder; SeaweedFS is started with it as its `-config_dir`.
    host: the address or name by which SeaweedFS's parts connect to each other.
    """
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    private_key = ec.generate_private_key(ec.SECP256R1())
    write_private(certificate, _certificate(private_key, host=host).public_bytes(serialization.Encoding.PEM).decode())
    write_private(
        key,
        private_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )
    write_private(folder / "security.toml", _configuration(certificate=certificate, key=key))


def _certificate(key: ec.EllipticCurvePrivateKey, *, host: str) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sluice-seaweedfs")])
    now = datetime.now(UTC)
    try:
        alternative: x509.GeneralName = x509.IPAddress(ip_address(host))
    except ValueError:
        alternative = x509.DNSName(host)
    return (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(key, hashes.SHA256())
    )


def _configuration(*, certificate: Path, key: Path) -> str:
    own = f'cert = "{certificate}"\nkey = "{key}"\n'
    trusted = f'ca = "{certificate}"\n'
    sections = [
        f"[grpc]\n{trusted}",
        *(f"[grpc.{part}]\n{own}" for part in _GRPC_PARTS),
        f"[https.client]\nenabled = true\n{own}{trusted}",
        *(f"[https.{part}]\n{own}{trusted}" for part in _HTTPS_PARTS),
    ]
    return "\n".join(sections)


if __name__ == "__main__":
    write_security(Path(sys.argv[1]), host=sys.argv[2])
