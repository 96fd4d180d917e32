"""Runs cells on the nodes of a Ray cluster. Each has cores, or a GPU, that no other cell has at the same time.

A cell is one Ray task. On its node the task starts the child process that measures, as `pool` does on one machine, and
streams the child's lines of progress and the row back. Only numbers, text and dictionaries of those cross.
The rows are kept where the command runs, so a run resumes with or without a cluster.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from vocabench.harness import numerals
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.harness.run import pool, provenance
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.store import Row, Store
from vocabench.impls.errors import BadInput

INSTALL = "pip install 'vocabench[ray]'"

_PATIENCE = 5.0  # seconds without news, after which the cluster is looked at


def check(device: str, address: str | None, cores: int | None) -> None:
    """Raises `BadInput` where Ray or its cluster is missing or an argument can never do, before work is prepared."""
    _ray()
    if ":" in device:
        raise BadInput(f"device {device!r} with --executor ray, which hands out the GPUs itself: allowed: cpu, cuda")
    if cores is not None and cores < 1:
        raise BadInput(f"--cores {cores}: allowed: a whole number from 1")
    address = address or os.environ.get("RAY_ADDRESS", "auto")
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host:
        raise _no_cluster(address, "no address")
    try:
        # Ray itself tries for minutes.
        socket.create_connection((host.strip("[]"), numerals.count(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError, ValueError) as error:
        raise _no_cluster(address, str(error)) from error


def run(
    cells: Iterable[Cell],
    store: Store,
    *,
    deadline: float,
    progress: pool.Progress,
    address: str | None = None,
    cores: int | None = None,
) -> Iterator[Row]:
    """As `pool.run`, on a Ray cluster.

    A cell whose node is lost is measured once more, on another; lost again, it is an error row.

    Args:
        address: Of the cluster, as `ray.init` takes it; None is the one that runs here, or else a new one of this
            machine alone.
        cores: Of each cell, and the threads that its framework may use; None gives a cell the whole node, or on a GPU
            its share of the node's cores.

    Raises:
        BadInput: There is no cluster at `address`, or none of its nodes has what a cell needs.
    """
    waiting = [cell for cell in cells if cell.key not in store]
    if not waiting:
        return
    ray = _ray()
    code = provenance.code_fingerprint()
    with _connected(ray, address):
        nodes = _nodes(ray)
        share = {gpus: cores or _share(nodes, gpus) for gpus in set(map(_gpus, waiting))}
        measure = ray.remote(max_retries=0)(_measure)

        def submit(cell: Cell) -> Any:
            gpus = _gpus(cell)
            task = measure.options(num_cpus=share[gpus], num_gpus=gpus, name=cell.label)
            return task.remote(cell.to_json(), deadline, share[gpus], code)

        _check_room(nodes, share)
        running = {submit(cell): cell for cell in waiting}
        lost: set[str] = set()
        while running:
            ready, _ = ray.wait(list(running), timeout=_PATIENCE)
            if not ready:
                _check_room(_nodes(ray), share)
                continue
            stream = ready[0]
            cell = running[stream]
            try:
                said = ray.get(next(stream))
            except ray.exceptions.OutOfMemoryError as error:
                said = _unanswered(cell, "oom", _first_line(error))
            except ray.exceptions.RayTaskError as error:
                said = _unanswered(cell, "error", f"the cell's node cannot measure: {_last_line(error)}")
            except ray.exceptions.RayError as error:
                if cell.key not in lost:
                    lost.add(cell.key)
                    del running[stream]
                    running[submit(cell)] = cell
                    said = "lost its node, goes to another"
                else:
                    said = _unanswered(cell, "error", f"lost its node twice: {_first_line(error)}")
            if isinstance(said, str):
                progress(cell, said)
            else:
                del running[stream]
                store.append(said)
                yield said


def _measure(fields: dict[str, Any], deadline: float, cores: int, code: str) -> Iterator[str | Row]:
    """On the node: lines of progress, then the cell's row."""
    cell = Cell.from_json(fields)
    yield ""
    with pool.Worker(cell.framework, threads=cores) as worker:
        yield from pool.measure(worker, cell, deadline, code)


def _ray() -> ModuleType:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise BadInput(f"--executor ray needs Ray, which is not installed: allowed: {INSTALL}") from error
    return ray


@contextlib.contextmanager
def _connected(ray: ModuleType, address: str | None) -> Iterator[None]:
    # A cluster that is started here tells nobody about it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Nodes that share this one's files need nothing said twice. `IMPORT_ROOT` stands for an installed checkout.
    path = os.pathsep.join(filter(None, [str(IMPORT_ROOT), os.environ.get("PYTHONPATH")]))
    shared = {name: value for name, value in os.environ.items() if name.startswith("VOCABENCH_")}
    try:
        ray.init(
            address,
            runtime_env={"env_vars": {**shared, "PYTHONPATH": path}},
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address or "the usual place", _first_line(error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _no_cluster(address: str, reason: str) -> BadInput:
    return BadInput(
        f"no Ray cluster at {address}: {reason}: allowed: auto, or the HOST:PORT that 'ray start --head' printed, on a "
        "machine that is in the cluster"
    )


def _gpus(cell: Cell) -> int:
    return int(cell.device == "cuda")


def _nodes(ray: ModuleType) -> list[dict[str, float]]:
    """The resources of each node that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _share(nodes: list[dict[str, float]], gpus: int) -> int:
    """Cores of a cell when each node is split evenly among its GPUs, or not at all: the same for every cell."""
    shares = [node.get("CPU", 0) // max(1, gpus * node.get("GPU", 0)) for node in nodes if node.get("GPU", 0) >= gpus]
    return int(min((share for share in shares if share >= 1), default=1))


def _check_room(nodes: list[dict[str, float]], share: Mapping[int, int]) -> None:
    """Raises `BadInput` where a cell would wait for ever. `share` is the cores of a cell, by its GPUs."""
    for gpus, cores in share.items():
        if not any(node.get("CPU", 0) >= cores and node.get("GPU", 0) >= gpus for node in nodes):
            here = ", ".join(f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes)
            raise BadInput(
                f"no node of the cluster has the {cores} cores and {gpus} GPUs of a cell (nodes have {here}): allowed: "
                "fewer --cores, or more nodes and the same command again, which keeps the rows so far"
            )


def _unanswered(cell: Cell, status: str, message: str) -> Row:
    row = pool.failed(cell, status, message)
    row["provenance"]["machine"] = {}  # not this one, and the node did not say
    return row


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
