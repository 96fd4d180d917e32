"""Layers whose words are split over the devices of a mesh, in a process with four of them."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")

from tests.impls.on_jax import parallel_checks

pytestmark = pytest.mark.lengthy


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """The failures of all checks, by the name of the check."""
    file = tmp_path_factory.mktemp("devices") / "failures.json"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.impls.on_jax.parallel_checks", str(file)]
    subprocess.run(command, env=environment, check=True, timeout=500)
    return json.loads(file.read_text())


@pytest.mark.parametrize("name", parallel_checks.checks)
def test_layers_split_over_devices(failures, name):
    assert name not in failures, failures[name]
