"""As many threads as there are CPUs for this process, whatever the machine has."""

import os
from collections.abc import Iterator

import pytest

from vocabench.impls import cpus


@pytest.fixture
def on_one_cpu() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs Linux")
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    yield
    os.sched_setaffinity(0, usable)


def test_those_that_this_process_may_run_on(on_one_cpu):
    assert cpus.usable() == 1


def test_those_of_the_machine_where_the_system_does_not_tell(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert cpus.usable() == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpus.usable() == 1
