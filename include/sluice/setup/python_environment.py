"""The project's Python environment: `.venv`, made from `uv.lock` by the version of uv that `uv.lock` pins.

The system's Python may have neither pip nor ensurepip (Debian packages them separately), so uv is downloaded as a file:
its URL and its hash are in the lock, and a wheel is a zip archive.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
import ssl
import sys
import tomllib
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sluice.errors import PrerequisiteError
from sluice.setup.command_runner import CommandRunner, Progress

_DOWNLOAD_SECONDS = 60.0
"""How long one read from the network may take while uv (20 MB) is fetched; the whole download may take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UvWheel:
    """The file that holds uv for one kind of machine."""

    version: str
    url: str
    sha256: str


def choose_uv_wheel(lock_text: str, *, machine: str) -> UvWheel:
    """Find uv's wheel for a Linux machine in the text of `uv.lock`.

    Parameters
    ----------
    lock_text: the text of `uv.lock`.
    machine: the processor as `platform.machine()` names it, for example x86_64.

    Raises
    ------
    PrerequisiteError: when the lock has no uv for this machine.
    """
    packages: list[dict[str, Any]] = tomllib.loads(lock_text)["package"]
    for package in packages:
        if package["name"] != "uv":
            continue
        for wheel in package["wheels"]:
            platforms = str(wheel["url"]).removesuffix(".whl").rsplit("-", 1)[-1].split(".")
            if any(tag.startswith("manylinux") and tag.endswith(f"_{machine}") for tag in platforms):
                sha256 = str(wheel["hash"]).removeprefix("sha256:")
                return UvWheel(version=package["version"], url=wheel["url"], sha256=sha256)
    raise PrerequisiteError(
        f"uv.lock has no uv for Linux on {machine} with the GNU C library.",
        next_step="Use an x86_64 or aarch64 machine with a distribution such as Debian, Ubuntu or Fedora.",
    )


def supported_pythons(pyproject_text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """The oldest supported Python and the first that is not supported any more, from the text of `pyproject.toml`."""
    requirement = str(tomllib.loads(pyproject_text)["project"]["requires-python"])
    bounds = [(int(major), int(minor)) for major, minor in re.findall(r"(\d+)\.(\d+)", requirement)]
    oldest, first_unsupported = bounds
    return oldest, first_unsupported


def environment_stamp(root: Path) -> str:
    """A hash of all that `.venv` depends on. The path is part of it, since a moved project needs new scripts."""
    digest = hashlib.sha256(str(root).encode())
    for name in ("pyproject.toml", "uv.lock"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def provide_uv(root: Path, *, cache: Path, progress: Progress) -> Path:
    """The pinned uv. Its wheel is fetched into the cache unless it is there, and verified each time.

    Raises
    ------
    PrerequisiteError: when it cannot be fetched or is not the file that the lock names.
    """
    wheel = choose_uv_wheel((root / "uv.lock").read_text(), machine=_machine())
    program = cache / "uv" / wheel.version / "uv"
    kept = program.with_name(wheel.url.rpartition("/")[2])
    if kept.is_file() and (content := kept.read_bytes()) and _is_the_locked_one(content, wheel):
        _unpack(content, program=program, kept=kept)
        return program
    progress.report(f"Fetching uv {wheel.version}")
    content = _fetch(wheel)
    if not _is_the_locked_one(content, wheel):
        raise PrerequisiteError(f"The file that was fetched as uv {wheel.version} is not the one that uv.lock names.")
    _unpack(content, program=program, kept=kept)
    return program


def _is_the_locked_one(content: bytes, wheel: UvWheel) -> bool:
    return hashlib.sha256(content).hexdigest() == wheel.sha256


def _unpack(wheel: bytes, *, program: Path, kept: Path) -> None:
    """Install the program of a wheel and keep the wheel, each completely or not at all; what is there already stays."""
    partial = program.with_name(f"uv.partial-{os.getpid()}")
    try:
        program.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            content = archive.read(next(name for name in archive.namelist() if name.endswith("/scripts/uv")))
        for file, wanted in ((kept, wheel), (program, content)):
            if not file.is_file() or file.read_bytes() != wanted:
                partial.write_bytes(wanted)
                partial.chmod(0o755)
                partial.replace(file)
    except OSError as error:
        raise PrerequisiteError(
            f"uv could not be put into {program.parent}: {error.strerror}.",
            next_step="Free some disk space or set XDG_CACHE_HOME to another folder, then run the command again.",
        ) from error
    finally:
        partial.unlink(missing_ok=True)  # it was renamed when all went well


def is_environment_ready(root: Path) -> bool:
    """Whether `.venv` was made completely from the present lock, and its interpreter still exists."""
    stamp = root / ".venv" / "sluice-stamp"
    return (
        (root / ".venv" / "bin" / "python").exists()
        and stamp.is_file()
        and stamp.read_text() == environment_stamp(root)
    )


def install_packages(root: Path, *, uv: Path, runner: CommandRunner) -> None:
    """Install exactly the packages of `uv.lock` into `.venv`.

    Raises
    ------
    PrerequisiteError: when uv fails; the message holds its explanation.
    """
    (root / ".venv" / "sluice-stamp").unlink(missing_ok=True)
    _run_uv(["sync", "--frozen", "--all-extras", *_interpreter(root)], root=root, uv=uv, runner=runner)


def compile_packages(root: Path, *, uv: Path, runner: CommandRunner) -> None:
    """Compile the installed packages to bytecode and mark the environment as ready.

    It takes a few seconds once. Without it, on a machine that sets PYTHONDONTWRITEBYTECODE, every Airflow process and
    every Spark worker would compile Airflow at each start, which takes two seconds.

    Raises
    ------
    PrerequisiteError: when uv fails; the message holds its explanation.
    """
    command = ["sync", "--frozen", "--all-extras", "--offline", "--compile-bytecode", *_interpreter(root)]
    _run_uv(command, root=root, uv=uv, runner=runner)
    (root / ".venv" / "sluice-stamp").write_text(environment_stamp(root))


def _interpreter(root: Path) -> list[str]:
    """The option for the Python that runs this module, when it is supported. Otherwise uv finds or fetches one."""
    oldest, first_unsupported = supported_pythons((root / "pyproject.toml").read_text())
    return ["--python", sys.executable] if oldest <= sys.version_info[:2] < first_unsupported else []


def _run_uv(arguments: list[str], *, root: Path, uv: Path, runner: CommandRunner) -> None:
    environment = {"UV_PROJECT_ENVIRONMENT": str(root / ".venv")}
    if _has_certificates():
        environment["UV_SYSTEM_CERTS"] = "true"  # a company's own authority is known to the system and not to uv
    result = runner.run([uv, *arguments, "--no-progress"], environment=environment, directory=root)
    if not result.is_success():
        raise PrerequisiteError(
            f"The Python packages could not be installed into {root / '.venv'}: {result.explanation()}",
            next_step="Check the network and the free disk space, then run the command again.",
        )


def _machine() -> str:
    """The processor, or a name that matches no wheel when the system is not Linux with the GNU C library."""
    library, _ = platform.libc_ver()
    return platform.machine() if library == "glibc" else f"{platform.machine()} without glibc"


def _fetch(wheel: UvWheel) -> bytes:
    try:
        request = urllib.request.Request(wheel.url)  # noqa: S310  # the URL is the lock's, and the hash is checked
        with urllib.request.urlopen(request, timeout=_DOWNLOAD_SECONDS, context=_tls_context()) as response:  # noqa: S310
            return bytes(response.read())
    except urllib.error.URLError as error:
        raise PrerequisiteError(
            f"uv {wheel.version} could not be fetched from {wheel.url}: {error.reason}.",
            next_step="Check the network (HTTPS_PROXY is honoured), then run the command again.",
        ) from error


def _tls_context() -> ssl.SSLContext:
    """The certificates of the machine; on a machine without any (a bare Debian image), those that pip brings.

    Raises
    ------
    PrerequisiteError: when there are none of either.
    """
    if _has_certificates():
        return ssl.create_default_context()
    bundle = find_spec("pip")
    places = (Path(folder, "_vendor", "certifi", "cacert.pem") for folder in _folders_of(bundle))
    certificates = next((place for place in places if place.is_file()), None)
    if certificates is None:
        raise PrerequisiteError(
            "This machine has no certificates, so that no download can be verified.",
            next_step="Install the package ca-certificates, or set SSL_CERT_FILE, then run the command again.",
        )
    return ssl.create_default_context(cafile=str(certificates))


def _folders_of(package: ModuleSpec | None) -> list[str]:
    return list(package.submodule_search_locations or ()) if package is not None else []


def _has_certificates() -> bool:
    """Whether this machine has a certificate authority, in a file or in a folder."""
    places = ssl.get_default_verify_paths()
    has_folder = places.capath is not None and any(Path(places.capath).iterdir())
    return has_folder or bool(ssl.create_default_context().cert_store_stats()["x509_ca"])
