"""The scripts of docs/parallel.md: they run on two ranks and on four devices, and learn."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

PAGE = (ROOT / "docs" / "parallel.md").read_text()
SCRIPTS = dict(re.findall(r"^## (.*?)\n[^#]*?```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("stack", "package", "launcher"),
    [
        ("PyTorch", "torch", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]),
        ("JAX", "jax", []),
    ],
)
def test_a_script_learns(stack, package, launcher, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    (tmp_path / "train.py").write_text(SCRIPTS[stack])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    printed = re.search(r"^([\d.]+) \[(.*)\]$", done.stdout, re.MULTILINE)
    assert printed is not None, done.stdout
    loss, ids = printed.groups()
    assert float(loss) < 6.9, "log 1000, the loss of a uniform distribution"
    assert len(set(ids.split(", "))) == 10
