"""The certificate of SeaweedFS's inner ports."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest
from cryptography import x509

from sluice.stack.seaweedfs_security import write_security


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "127.0.0.1"), ("seaweedfs", "seaweedfs")])
def test_every_part_asks_for_the_one_certificate(tmp_path: Path, host: str, name: str) -> None:
    write_security(tmp_path, host=host)

    found = tomllib.loads((tmp_path / "security.toml").read_text())
    own = {"cert": str(tmp_path / "certificate.pem"), "key": str(tmp_path / "key.pem")}
    trusted = {"ca": own["cert"]}
    assert found["grpc"] == trusted | dict.fromkeys(
        ("master", "volume", "filer", "s3", "admin", "worker", "client"), own
    )
    assert found["https"] == {
        "client": {"enabled": True} | own | trusted,
        **dict.fromkeys(("master", "volume", "filer", "admin"), own | trusted),
    }
    certificate = x509.load_pem_x509_certificate(Path(own["cert"]).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in names] == [name]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_each_start_has_a_key_of_its_own(tmp_path: Path) -> None:
    write_security(tmp_path, host="127.0.0.1")
    first = (tmp_path / "key.pem").read_text()
    write_security(tmp_path, host="127.0.0.1")

    assert (tmp_path / "key.pem").read_text() != first
