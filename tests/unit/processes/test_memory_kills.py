"""The kernel's counter of processes that it killed for want of memory, in control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.processes.driver_watch import MemoryKillWatch, count_memory_kills


@pytest.mark.parametrize(
    ("groups", "file", "content"),
    [
        ("0::/system.slice/airflow\n", "system.slice/airflow/memory.events", "low 0\noom 4\noom_kill 3\n"),
        ("0::/\n", "memory.events", "oom_kill 3\n"),
        (
            "5:cpu:/a\n4:memory:/docker/1f\n0::/\n",
            "memory/docker/1f/memory.oom_control",
            "under_oom 0\noom_kill 3\n",
        ),
        ("4:memory:/docker/1f\n", "memory/memory.oom_control", "oom_kill 3\n"),
    ],
    ids=["version 2", "version 2 in a container", "version 1", "version 1 in a container"],
)
def test_the_counter_of_the_own_group_is_read(tmp_path: Path, groups: str, file: str, content: str) -> None:
    counter = tmp_path / "mount" / file
    counter.parent.mkdir(parents=True)
    counter.write_text(content)
    (tmp_path / "cgroup").write_text(groups)

    assert count_memory_kills(groups=tmp_path / "cgroup", mount=tmp_path / "mount") == 3


@pytest.mark.parametrize("groups", ["", "0::/\n", "7:cpu:/\n"])
def test_there_may_be_no_counter(tmp_path: Path, groups: str) -> None:
    (tmp_path / "cgroup").write_text(groups)

    assert count_memory_kills(groups=tmp_path / "cgroup", mount=tmp_path) is None
    assert count_memory_kills(groups=tmp_path / "missing", mount=tmp_path) is None


def test_only_a_kill_of_the_last_two_samples_counts() -> None:
    counts = iter([5, 5, 6, 6, 6, 6, 6])
    watch = MemoryKillWatch(lambda: next(counts))
    assert not watch.has_killed()
    assert watch.has_killed(), "the counter has risen since the watch began"
    watch.sample()
    assert watch.has_killed(), "the process may take a while to die, and a sample may fall into it"
    watch.sample()
    assert not watch.has_killed(), "it was another one, some time ago"


def test_without_a_counter_no_kill_is_known() -> None:
    watch = MemoryKillWatch(lambda: None)
    watch.sample()
    assert not watch.has_killed()
