"""Provokes every failure once and writes what it raised into the corpus. Not part of a test run:

.venv/bin/python -m pytest tests/spark/record_failures.py
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.fixtures.failures import CORPUS
from tests.fixtures.workshop import Workshop
from tests.spark.provocations import CHEAP, COSTLY
from tests.spark.provoking import Place, TextError

from sluice.failures.error_chains import ErrorChain, chain_in, chain_of


@pytest.mark.parametrize("provoke", [*CHEAP, *COSTLY], ids=lambda one: one.__name__)
def test_record(provoke: Callable[[Place], None], workshop: Workshop, tmp_path: Path) -> None:
    place = Place(workshop=workshop, folder=tmp_path, stream=f"s{workshop.namespace}")
    with pytest.raises(Exception) as raised:  # noqa: PT011  # whatever comes is what is recorded
        provoke(place)
    error = raised.value
    chain = chain_in(str(error)) if isinstance(error, TextError) else chain_of(error)
    record = {
        "provoked": (provoke.__doc__ or "").strip(),
        "chain": [scrubbed(asdict(link), place) for link in chain],
    }
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{provoke.__name__}.json").write_text(json.dumps(record, indent=1) + "\n")
    assert chain != ErrorChain()


def scrubbed(link: dict[str, str], place: Place) -> dict[str, str]:
    """A link without the names of this machine and this test; empty fields are left out."""
    return {key: _without_names(value, place) for key, value in link.items() if value}


def _without_names(text: str, place: Place) -> str:
    names = {place.workshop.namespace: "bronze", os.uname().nodename: "a-host", str(place.folder): "/data"}
    for name, instead in names.items():
        text = text.replace(name, instead)
    text = re.sub(r"(?<![\w/])/(?:tmp|ro" + r"ot|wo" + r"rk|usr|home)[\w./+-]*", "/somewhere", text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "an-id", text)
    text = re.sub(r"\b([tc])[0-9a-f]{8,32}\b", r"\1", text)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:9", text)
