"""The commands that messages give for packages that are missing."""

import re
import tomllib

from tests import ROOT
from vocabench.harness import installing


def test_in_a_checkout_the_checkout_is_installed_with_pinned_versions(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert installing.pip_install("jax", "flax") == 'pip install -c constraints.txt ".[jax]" flax'
    assert installing.pip_install("jinja2") == "pip install -c constraints.txt jinja2"
    monkeypatch.chdir(tmp_path)
    assert installing.pip_install("ray") == f'pip install -c {ROOT}/constraints.txt "{ROOT}[ray]"'


def test_elsewhere_an_extra_of_the_distribution_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(installing, "IMPORT_ROOT", tmp_path)
    assert installing.pip_install("babel", "soundfile") == 'pip install "vocabench[speech]"'
    assert installing.pip_install("jax", "torch", "flax") == 'pip install "vocabench[jax,torch]" flax'


def test_the_extras_are_those_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for package, extra in installing.EXTRAS.items():
        names = [re.split(r"[\[<>=~]", line)[0] for line in project["optional-dependencies"][extra]]
        assert package in names
