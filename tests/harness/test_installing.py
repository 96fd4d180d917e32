"""The commands that messages give for packages that are missing."""

from vocabench.harness import installing


def test_versions_are_pinned_in_a_checkout_alone(tmp_path, monkeypatch):
    assert installing.pip_install("jax", "flax") == "pip install -c constraints.txt jax flax"
    monkeypatch.setattr(installing, "IMPORT_ROOT", tmp_path)
    assert installing.pip_install("jax", "flax") == "pip install jax flax"
