"""The pinned uv: verified when it is fetched, and each time when it comes from the cache."""

from __future__ import annotations

import hashlib
import io
import shutil
import ssl
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import certifi
import pytest

from sluice.errors import PrerequisiteError
from sluice.setup import python_environment
from sluice.setup.command_runner import Progress
from sluice.setup.python_environment import UvWheel, provide_uv


def wheel_of(program: bytes) -> bytes:
    """A wheel with one program."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("uv-9.data/scripts/uv", program)
    return content.getvalue()


class Network:
    """Serves one wheel, and counts how often it is asked."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked = 0

    def fetch(self, wheel: UvWheel) -> bytes:
        """The wheel's bytes."""
        self.asked += 1
        return self.content


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Network:
    """A network with the wheel that the lock names."""
    content = wheel_of(b"the program")
    (tmp_path / "uv.lock").touch()
    wheel = UvWheel(version="9", url="https://files.example/uv-9.whl", sha256=hashlib.sha256(content).hexdigest())
    network = Network(content)
    monkeypatch.setattr(python_environment, "choose_uv_wheel", lambda text, machine: wheel)
    monkeypatch.setattr(python_environment, "_fetch", network.fetch)
    return network


def provided(root: Path) -> bytes:
    """The program that the bootstrap would run."""
    return provide_uv(root, cache=root / "cache", progress=Progress()).read_bytes()


def test_it_is_fetched_once(network: Network, tmp_path: Path) -> None:
    assert [provided(tmp_path), provided(tmp_path)] == [b"the program", b"the program"]
    assert network.asked == 1


@pytest.mark.parametrize("name", ["uv", "uv-9.whl"])
def test_what_was_exchanged_in_the_cache_is_not_used(network: Network, tmp_path: Path, name: str) -> None:
    provided(tmp_path)
    (tmp_path / "cache" / "uv" / "9" / name).write_bytes(wheel_of(b"another program"))
    assert provided(tmp_path) == b"the program"
    assert network.asked == (2 if name == "uv-9.whl" else 1)


def test_another_file_than_the_locked_one_is_refused(network: Network, tmp_path: Path) -> None:
    network.content = wheel_of(b"another program")
    with pytest.raises(PrerequisiteError, match=r"is not the one that uv\.lock names"):
        provided(tmp_path)


def test_without_certificates_of_the_machine_those_of_pip_verify(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vendored = tmp_path / "_vendor" / "certifi" / "cacert.pem"
    vendored.parent.mkdir(parents=True)
    shutil.copyfile(certifi.where(), vendored)
    pip = ModuleSpec("pip", None, is_package=True)
    pip.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(python_environment, "find_spec", lambda name: pip)
    monkeypatch.setattr(python_environment, "_has_certificates", lambda: False)
    context = python_environment._tls_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.cert_store_stats()["x509_ca"] > 0


def test_without_any_certificates_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_environment, "_has_certificates", lambda: False)
    monkeypatch.setattr(python_environment, "find_spec", lambda name: None)
    with pytest.raises(PrerequisiteError, match=r"no certificates.*ca-certificates"):
        python_environment._tls_context()
