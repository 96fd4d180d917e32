"""The scripts of docs/in-your-model.md: they learn, save, load in a new process and continue to the same loss."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

PAGE = (ROOT / "docs" / "in-your-model.md").read_text()
SCRIPTS = dict(re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL))
NEEDS = {
    "PyTorch": ("torch",),
    "Hugging Face": ("torch", "transformers", "accelerate"),
    "Keras": ("tensorflow",),
    "Flax NNX": ("jax", "flax"),
    "Equinox": ("jax", "equinox"),
}


def losses(script, steps, folder):
    """Run a script for some steps, and return the losses that it prints, by step."""
    folder.mkdir(exist_ok=True)
    path = folder / "train.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(path), str(steps)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return {int(step): float(loss) for step, loss in re.findall(r"^(\d+) (\d\S*)$", done.stdout, re.MULTILINE)}


def test_there_is_a_script_for_each_stack():
    assert SCRIPTS.keys() == NEEDS.keys()


@pytest.mark.parametrize("stack", SCRIPTS)
def test_a_script_has_less_than_forty_lines_of_code(stack):
    assert sum(bool(line.strip()) for line in SCRIPTS[stack].splitlines()) < 40


@pytest.mark.many_cells
@pytest.mark.parametrize("stack", SCRIPTS)
def test_a_script_learns_and_continues_in_a_new_process_to_the_same_loss(stack, tmp_path):
    for package in NEEDS[stack]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    unbroken = losses(SCRIPTS[stack], 20, tmp_path / "unbroken")
    assert list(unbroken) == list(range(20))
    assert unbroken[19] < unbroken[0]
    first = losses(SCRIPTS[stack], 10, tmp_path / "resumed")
    second = losses(SCRIPTS[stack], 20, tmp_path / "resumed")
    assert second[19] == pytest.approx(unbroken[19], rel=1e-4)
    assert first[9] == pytest.approx(unbroken[9], rel=1e-4)
    assert second.keys() >= set(range(10, 20))
