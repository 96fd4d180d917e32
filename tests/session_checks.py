"""Checks of a whole test session: the memory of its workers, and its skipped tests."""

import ctypes
import gc
import re
import sys
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

GIB = 2**30


class WorkerMemory:
    """A bound on the resident memory of each process that runs tests.

    Compiled programs, traced graphs and objects that are frozen for the garbage collector accumulate from test to test.
    They are released once a process exceeds `RELEASE_AT`. Releasing them more often would repeat compilations.
    """

    LIMIT = 8 * GIB  # workers of the whole suite reach 5.4 GiB; the aim is 3 GiB
    RELEASE_AT = 2 * GIB
    _GROWTH = GIB // 4  # least growth since the last release before the next one

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._release_at = self.RELEASE_AT
        self._peak = 0
        self._peaks: dict[str, int] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        result = yield
        resident = self._process.memory_info().rss
        self._peak = max(self._peak, resident)
        if resident > self._release_at:
            release_memory()
            self._release_at = max(self.RELEASE_AT, self._process.memory_info().rss + self._GROWTH)
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect the peak of a worker of pytest-xdist, in the process that started it."""
        self._peaks[node.gateway.id] = getattr(node, "workeroutput", {}).get("peak_memory", 0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        workeroutput = getattr(session.config, "workeroutput", None)
        if workeroutput is not None:
            workeroutput["peak_memory"] = self._peak
            return
        if self._peak:
            self._peaks["this process"] = self._peak
        if max(self._peaks.values(), default=0) > self.LIMIT and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, peak in sorted(self._peaks.items()):
            excess = f", more than the limit of {self.LIMIT / GIB:.0f} GiB" if peak > self.LIMIT else ""
            terminalreporter.write_line(f"memory of {name}: {peak / GIB:.2f} GiB{excess}", red=bool(excess))


def release_memory() -> None:
    """Release compiled programs, graphs and garbage, and return free memory to the system."""
    if (jax := sys.modules.get("jax")) is not None:
        jax.clear_caches()
    if (tf := sys.modules.get("tensorflow")) is not None:
        tf.keras.backend.clear_session()
    gc.unfreeze()
    gc.collect()
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)


class GradientsOfGraphs(dict[str, Any]):
    """The registry of TensorFlow's gradients, whose entries of traced custom gradients last as long as their graph.

    TensorFlow keeps each gradient that a traced `tf.custom_gradient` defines, and with it the whole graph, until the
    process ends. Here the graph owns it.
    """

    _PREFIX = "CustomGradient-"

    def __init__(self, entries: dict[str, Any]) -> None:
        super().__init__(entries)
        self._graphs: dict[str, weakref.ref[Any]] = {}

    @classmethod
    def install(cls, ops: Any) -> None:
        """Use such a registry from now on.

        Args:
            ops: The module `tensorflow.python.framework.ops`.
        """
        if not isinstance(ops.gradient_registry._registry, cls):
            ops.gradient_registry._registry = cls(ops.gradient_registry._registry)

    def __setitem__(self, name: str, entry: Any) -> None:
        if not name.startswith(self._PREFIX):
            super().__setitem__(name, entry)
            return
        graph = sys.modules["tensorflow"].compat.v1.get_default_graph()
        if not hasattr(graph, "_custom_gradients"):
            graph._custom_gradients = {}
        graph._custom_gradients[name] = entry
        self._graphs[name] = weakref.ref(graph, lambda _: self._graphs.pop(name))

    def __getitem__(self, name: str) -> Any:
        graph = self._graphs[name]() if name in self._graphs else None
        return super().__getitem__(name) if graph is None else graph._custom_gradients[name]

    def __contains__(self, name: object) -> bool:
        return name in self._graphs or super().__contains__(name)


class SkippedTests:
    """A summary of skipped tests by reason, which fails the session on a reason that a file does not expect.

    Each line of the file is a regular expression for reasons, ` -- `, and why such tests are skipped. Blank lines and
    lines that start with `#` are ignored.
    """

    def __init__(self, expected: Path | None) -> None:
        lines = [] if expected is None else expected.read_text(encoding="utf-8").splitlines()
        patterns = [line.partition(" -- ")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
        self._expected = None if expected is None else [re.compile(pattern) for pattern in patterns]
        self._reasons: Counter[str] = Counter()
        self._nodes: dict[str, str] = {}
        self._seen: set[tuple[str, str]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._add(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._add(report.nodeid, report.longrepr)

    def _add(self, node: str, longrepr: Any) -> None:
        reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
        reason = reason.removeprefix("Skipped: ")
        if (node, reason) in self._seen:  # each worker of pytest-xdist reports the modules that it does not collect
            return
        self._seen.add((node, reason))
        self._reasons[reason] += 1
        self._nodes.setdefault(reason, node)

    def _unexpected(self) -> list[str]:
        if self._expected is None:
            return []
        return [reason for reason in self._reasons if not any(known.search(reason) for known in self._expected)]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unexpected() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        unexpected = self._unexpected()
        for reason, count in sorted(self._reasons.items()):
            mark = "unexpectedly " if reason in unexpected else ""
            line = f"{mark}skipped {count}: {reason} ({self._nodes[reason]}{', ...' if count > 1 else ''})"
            terminalreporter.write_line(line, red=bool(mark))
