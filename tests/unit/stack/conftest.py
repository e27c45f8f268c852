"""A plan of a stack that is never started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.stack.credentials import generate_credentials
from sluice.stack.environment import build_environment
from sluice.stack.folder import StackFolder
from sluice.stack.services import all_services
from sluice.stack.stack_plan import StackPlan, Tools
from sluice.stack.surroundings import Surroundings


@pytest.fixture
def folder(tmp_path: Path) -> StackFolder:
    """An empty stack folder."""
    made = StackFolder(tmp_path / "data")
    made.create()
    return made


@pytest.fixture
def plan(folder: StackFolder) -> StackPlan:
    """A whole plan: ports from 20001 upwards in the order of the services."""
    names = [port.name for service in all_services().values() for port in service.ports]
    tools = Tools(
        python=Path("/env/bin/python"), java_home=Path("/jdk"), jars=Path("/jars"), spark_home=Path("/env/pyspark")
    )
    bare = StackPlan(
        home=Path("/project"),
        folder=folder,
        ports={name: 20_001 + place for place, name in enumerate(names)},
        credentials=generate_credentials(),
        tools=tools,
        environment={},
    )
    return replace(bare, environment=build_environment(bare, surroundings=Surroundings()))
