"""Every method has its page, and the code on it runs."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from harness import registry
from harness.workload import batch, zipf_counts

PAGES = Path(__file__).parent.parent / "docs" / "methods"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
HEADINGS = {"torch": "PyTorch:", "tensorflow": "TensorFlow:", "jax": "JAX:"}
FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]


def test_there_is_a_page_for_each_method_and_no_other():
    assert sorted(page.stem for page in PAGES.glob("*.md")) == sorted(registry.methods())


@pytest.mark.parametrize("method", registry.methods())
def test_options_and_parameters_are_named(method):
    page = (PAGES / f"{method}.md").read_text()
    for name in registry.definition(method).options:
        assert f"`{name}`" in page, name


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", registry.methods())
def test_the_code_runs(method, framework):
    page = (PAGES / f"{method}.md").read_text()
    if method not in registry.methods(framework):
        assert HEADINGS[framework] not in page
        return
    counts = zipf_counts(300)
    inputs = batch(counts, tokens=20, dim=512, seed=0)
    before, after = page.split(HEADINGS[framework], 1)
    [specification] = BLOCK.findall(before)[:1]
    names: dict[str, object] = {"counts": counts, **_inputs(framework, inputs)}
    exec(specification, names)
    exec(BLOCK.findall(after)[0], names)
    loss = names["loss"].detach() if framework == "torch" else names["loss"]  # type: ignore[attr-defined]
    values, ids = (np.asarray(names[name]) for name in ("values", "ids"))
    assert values.shape == ids.shape == (20, 10)
    assert np.isfinite(np.asarray(loss))


def _inputs(framework, inputs):
    hidden_ND, targets_N = inputs.hidden_ND.astype(np.float32), inputs.targets_N
    if framework == "torch":
        torch = importlib.import_module("torch")
        return {"hidden": torch.tensor(hidden_ND), "targets": torch.tensor(targets_N)}
    if framework == "tensorflow":
        tf = importlib.import_module("tensorflow")
        return {"tf": tf, "hidden": tf.constant(hidden_ND), "targets": tf.constant(targets_N, tf.int32)}
    jax = importlib.import_module("jax")
    jnp = jax.numpy
    return {"jax": jax, "jnp": jnp, "hidden": jnp.asarray(hidden_ND), "targets": jnp.asarray(targets_N)}
