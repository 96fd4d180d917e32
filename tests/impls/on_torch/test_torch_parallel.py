"""Layers whose words are split over the ranks of a process group."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

from tests.impls.on_torch import parallel_checks  # noqa: E402

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
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("name", parallel_checks.checks)
def test_layers_split_over_ranks(failures, name):
    failed = [f"rank {rank}:\n{of_rank[name]}" for rank, of_rank in enumerate(failures) if name in of_rank]
    assert not failed, "\n".join(failed)
