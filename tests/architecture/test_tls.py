"""Nothing that Sluice ships, and no recipe of it, switches the verification of certificates off."""

from __future__ import annotations

import re

from tests.architecture.committed_files import committed_files

SWITCHED_OFF = re.compile(
    r"CERT_NONE|check_hostname\s*=\s*False|_create_unverified_context|verify_mode\s*=\s*0|ssl\._https_verify|"
    r"disable_warnings|--insecure|curl\s+(?:\S+\s+)*-k\b|--no-check-certificate|--trusted-host|PYTHONHTTPSVERIFY|"
    r"GIT_SSL_NO_VERIFY|enable\.ssl\.certificate\.verification|ssl\.endpoint\.identification\.algorithm\W+\"\"|"
    r"NODE_TLS_REJECT_UNAUTHORIZED|trustServerCertificate=true|insecure-skip-tls"
)
IN_PLAIN_HTTP = "include/sluice/launching/yarn.py"
"""It says `verify=False` of addresses that are not `https:`, where there is nothing to verify."""


def test_certificates_are_always_verified() -> None:
    looked_at = [file for file in committed_files() if file.suffix in {".py", ".sh", ".yaml", ".yml", ".toml", ""}]
    wrong = [
        f"{file}:{number}: {line.strip()}"
        for file in looked_at
        if file.name != "test_tls.py"
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1)
        if SWITCHED_OFF.search(line) or (re.search(r"verify\s*=\s*False", line) and IN_PLAIN_HTTP not in str(file))
    ]
    assert len(looked_at) > 500
    assert wrong == []
