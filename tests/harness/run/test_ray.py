"""Cells on a Ray cluster of two nodes on this machine: the rows are the same, and a failure costs at most one cell."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.harness.run.test_pool import oracle_cells, quiet
from vocabench.harness import cli, registry
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.harness.installing import pip_install
from vocabench.harness.run import pool, provenance, ray_pool
from vocabench.harness.run.store import Store, read
from vocabench.impls.errors import BadInput

METHODS = ["full_softmax", "huffman", "sohsm"]


def test_without_ray_the_install_line_is_printed(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["run", "check", "--executor", "ray"]) == 2
    assert f"allowed: '{pip_install('ray')}' first" in capsys.readouterr().err


def test_arguments_for_a_cluster_are_refused_without_one(capsys):
    assert cli.main(["run", "check", "--cores", "2"]) == 2
    assert "--executor ray" in capsys.readouterr().err


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        two_nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        two_nodes.add_node(num_cpus=1)
        two_nodes.wait_for_nodes()
        yield two_nodes
        two_nodes.shutdown()


def workers_below(*pids):
    """Return the worker processes on the nodes whose raylets have these process ids."""

    def measures(process):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, or has not been waited for
            return "vocabench.harness.run.worker" in process.cmdline()
        return False

    return [child for pid in pids for child in psutil.Process(pid).children(recursive=True) if measures(child)]


def raylet(node):
    return node.all_processes["raylet"][0].process.pid


def wait_until(condition, seconds=30):
    """Return the value of `condition` once it is true."""
    ends = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < ends
        time.sleep(0.05)
    return value


@pytest.mark.parametrize(
    ("device", "address", "cores", "message"),
    [
        ("cpu", "nonsense", None, "no Ray cluster at nonsense"),
        ("cpu", "ray://localhost:10001", None, "no Ray cluster at ray://"),
        ("cpu", "localhost:\uff16\uff13\uff17\uff19", None, "no Ray cluster at localhost"),
        ("cpu", "127.0.0.1:1", None, "refused"),
        ("cpu", "auto", 0, "--cores 0: allowed"),
        ("cuda:1", "auto", None, "allowed: cpu, cuda"),
    ],
)
def test_invalid_arguments_are_refused(device, address, cores, message):
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(BadInput, match=message):
        ray_pool.check(device, address, cores)


@pytest.mark.parametrize(("gpus", "share"), [(0, 4), (1, 8), (4, 32)])
def test_by_default_a_cell_gets_a_node_or_its_share_of_a_node_with_gpus(gpus, share):
    nodes = [{}, {"CPU": 64.0, "GPU": 8.0}, {"CPU": 4.0}]
    assert ray_pool._share(nodes, gpus) == share


@pytest.mark.lengthy
def test_rows_are_those_of_the_local_pool_and_a_run_resumes(cluster, tmp_path):
    cells = oracle_cells(METHODS)
    lines = []
    with Store(tmp_path / "local.jsonl") as store:
        local = {row.key: row for row in pool.run(cells, store, deadline=120, progress=quiet)}
    path = tmp_path / "ray.jsonl"
    with Store(path) as store:
        options = {"deadline": 120, "progress": lambda *line: lines.append(line), "address": cluster.address}
        rows = [*ray_pool.run(cells[:1], store, **options), *ray_pool.run(cells, store, **options)]
        assert list(ray_pool.run(cells, store, **options)) == []
    assert [row.key for row in read(path)] == [row.key for row in rows]
    assert sorted(local) == sorted(row.key for row in rows)
    for row in rows:
        here = local[row.key]
        assert row.status == "ok", row.message
        assert (row.cell, row.agreement, row.measurements) == (here.cell, here.agreement, here.measurements)
        assert row.provenance.code == here.provenance.code
        assert row.provenance.machine == here.provenance.machine
        assert row.provenance.framework == here.provenance.framework
    for cell in cells:
        assert lines.count((cell, "")) == 1


@pytest.mark.lengthy
def test_a_cell_has_as_many_threads_as_cores(cluster, tmp_path):
    cells = oracle_cells(["full_softmax"])
    seen = []

    def look(cell, text):
        if not text:
            seen.extend(child.environ()["NPROC"] for child in wait_until(lambda: workers_below(*map(raylet, nodes))))

    nodes = cluster.list_all_nodes()
    with Store(tmp_path / "rows.jsonl") as store:
        run = ray_pool.run(cells, store, deadline=120, progress=look, address=cluster.address, cores=1)
        assert [row.status for row in run] == ["ok"]
    assert set(seen) == {"1"}


@pytest.mark.lengthy
def test_a_cell_that_fits_on_no_node_is_refused(cluster, tmp_path):
    with Store(tmp_path / "rows.jsonl") as store:
        run = ray_pool.run(oracle_cells(METHODS), store, deadline=9, progress=quiet, address=cluster.address, cores=64)
        with pytest.raises(BadInput, match="no node of the cluster has the 64 cores and 0 GPUs"):
            list(run)


@pytest.mark.lengthy
def test_a_node_with_other_code_gives_an_error_row(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "code_fingerprint", lambda: "ffffffffffff")
    with Store(tmp_path / "rows.jsonl") as store:
        run = ray_pool.run(oracle_cells(["full_softmax"]), store, deadline=120, progress=quiet, address=cluster.address)
        (row,) = run
    assert row.status == "error"
    assert "the code here" in row.message
    assert row.provenance.code["fingerprint"] != "ffffffffffff"


@pytest.mark.lengthy
def test_a_killed_worker_becomes_a_row_and_the_other_cells_are_measured(cluster, tmp_path):
    nodes = cluster.list_all_nodes()
    killed = []

    def kill_first(cell, text):
        if not killed:  # the cell has just started
            child, *_ = wait_until(lambda: workers_below(*map(raylet, nodes)))
            child.kill()
            killed.append(child.pid)

    with Store(tmp_path / "rows.jsonl") as store:
        rows = list(
            ray_pool.run(oracle_cells(METHODS), store, deadline=120, progress=kill_first, address=cluster.address)
        )
    assert killed
    assert sorted(row.status for row in rows) == ["error", "ok", "ok"]
    (lost,) = [row for row in rows if row.status == "error"]
    assert "killed by SIGKILL" in lost.message


@pytest.mark.lengthy
def test_a_cell_lost_twice_is_an_error_row(cluster, tmp_path):
    """Killing Ray's process around the worker looks to the driver like the loss of a node."""
    nodes, killed = cluster.list_all_nodes(), []

    def kill_around(cell, text):
        if not text:
            child, *_ = wait_until(lambda: [c for c in workers_below(*map(raylet, nodes)) if c.pid not in killed])
            killed.append(child.pid)
            psutil.Process(child.ppid()).kill()

    cells = oracle_cells(["sohsm"])
    with Store(tmp_path / "rows.jsonl") as store:
        (row,) = ray_pool.run(cells, store, deadline=120, progress=kill_around, address=cluster.address)
    assert len(killed) == 2
    assert row.status == "error"
    assert "lost its node twice" in row.message
    assert row.provenance.machine == {}


@pytest.fixture
def default_sigint():
    """Make child processes react to Ctrl-C, even if the tests ignore it."""
    # A shell without job control starts background jobs with SIGINT ignored, and their child processes inherit that.
    # While the parent has a handler, its child processes have the default action instead.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.lengthy
def test_a_stopped_run_leaves_no_worker_and_resumes(cluster, in_empty_folder, default_sigint):
    command = [sys.executable, "-m", "vocabench", "run", "check", "-f", "numpy", "-s", "training=False"]
    on_cluster = [*command, "--executor", "ray", "--address", cluster.address]
    environment = {**os.environ, "PYTHONPATH": str(IMPORT_ROOT)}
    nodes = [raylet(node) for node in cluster.list_all_nodes()]
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        out = [
            "--out",
            f"{number}.jsonl",
        ]  # a new file, so that the run does not end before the signal
        run = subprocess.Popen([*on_cluster, *out], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wait_until(lambda: workers_below(*nodes))
        run.send_signal(number)
        _, output = run.communicate(timeout=60)
        assert run.returncode == code, output
        wait_until(lambda: not workers_below(*nodes))
    done = subprocess.run([*command, *out], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    keys = [row.key for row in read(in_empty_folder / out[1])]
    assert sorted(keys) == sorted(cell.key for cell in oracle_cells(registry.methods()))


@pytest.mark.lengthy
def test_cells_of_a_node_that_is_removed_are_measured_elsewhere(cluster, tmp_path):
    """This test is the last because it removes a node, once a cell is being measured there."""
    *_, node = cluster.list_all_nodes()
    pid = raylet(node)
    messages = []

    def remove_node(cell, text):
        if psutil.pid_exists(pid) and workers_below(pid):
            children = psutil.Process(pid).children(recursive=True)
            cluster.remove_node(node, allow_graceful=False)
            for process in children:  # no process of a lost machine can still answer
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        messages.append(text)

    cells = oracle_cells(registry.methods())
    with Store(tmp_path / "rows.jsonl") as store:
        rows = list(ray_pool.run(cells, store, deadline=120, progress=remove_node, address=cluster.address))
    assert not psutil.pid_exists(pid)
    assert "lost its node, goes to another" in messages
    assert [row.status for row in rows] == ["ok"] * len(cells)
    assert len(read(tmp_path / "rows.jsonl")) == len(cells)
