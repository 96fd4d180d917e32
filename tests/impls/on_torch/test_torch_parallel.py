"""Layers whose words are split over the ranks of a process group."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

from tests.impls.on_torch import parallel_checks

# One thread for each process, so that four of them do not compete.
_ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module", params=[2, 4])
def failures(request, tmp_path_factory):
    """The failures of all checks on each rank, by the name of the check."""
    folder, ranks = tmp_path_factory.mktemp("ranks"), request.param
    command = [sys.executable, "-m", "tests.impls.on_torch.parallel_checks"]
    processes = [
        subprocess.Popen([*command, str(rank), str(ranks), str(folder)], env=_ENVIRONMENT) for rank in range(ranks)
    ]
    try:
        assert [process.wait(timeout=240) for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.lengthy
@pytest.mark.parametrize("name", parallel_checks.checks)
def test_layers_split_over_ranks(failures, name):
    failed = [f"rank {rank}:\n{of_rank[name]}" for rank, of_rank in enumerate(failures) if name in of_rank]
    assert not failed, "\n".join(failed)


_TRAINING = """
import sys, time
from datetime import timedelta
import torch
from torch import distributed
import vocabench.torch

rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=timedelta(seconds=8)
)
layer = vocabench.torch.layer("full_softmax", vocab=50, dim=8, group=distributed.group.WORLD)
hidden, targets = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), torch.arange(4)
for step in range(10**9):
    layer(hidden, targets).backward()
    if step == 10:
        open(f"{folder}/{rank}", "w").close()
    time.sleep(0.01)
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_hangs_ends_the_others_with_one_clear_line(tmp_path, sent):
    command = [sys.executable, "-c", _TRAINING]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], env=_ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        deadline = time.monotonic() + 120
        while not all((tmp_path / str(rank)).exists() for rank in range(2)):
            assert time.monotonic() < deadline, "the ranks have not started to train"
            time.sleep(0.1)
        processes[1].send_signal(sent)
        _, errors = processes[0].communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
        processes[1].communicate()
    last = errors.strip().splitlines()[-1]
    assert processes[0].returncode == 1
    assert "LostRank: all_reduce of rank 0 of 2: another rank has ended or does not answer (" in last
