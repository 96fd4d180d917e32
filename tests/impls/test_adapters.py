"""Every framework's adapter module offers what the `Adapter` protocol names."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.adapter import Adapter
from vocabench.impls.forms import Form, kind_of

if TYPE_CHECKING:  # the type checker compares each module with the protocol
    from vocabench.impls.on_jax import adapter as jax_adapter
    from vocabench.impls.on_numpy import adapter as numpy_adapter
    from vocabench.impls.on_tensorflow import adapter as tensorflow_adapter
    from vocabench.impls.on_torch import adapter as torch_adapter

    ADAPTERS: tuple[Adapter, ...] = (numpy_adapter, torch_adapter, tensorflow_adapter, jax_adapter)

MEMBERS = [name for name in vars(Adapter) if not name.startswith("_")]


@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_an_adapter_has_every_member(framework):
    adapter = registry.adapter(framework)
    assert [name for name in MEMBERS if not hasattr(adapter, name)] == []
    for name in MEMBERS:
        member = getattr(adapter, name)
        if callable(member):
            expected = list(inspect.signature(getattr(Adapter, name)).parameters)[1:]
            assert list(inspect.signature(member).parameters) == expected, name


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_forms_have_unique_ids_and_suit_the_device(framework, device):
    for method in registry.methods(framework):
        try:
            spec = layers.spec(method, counts=zipf_counts(50), dim=16)
        except ValueError:  # the method requires options
            continue
        forms = layers.forms(framework, spec, device)
        assert all(isinstance(form, Form) and kind_of(device) in form.devices for form in forms)
        assert len({form.id for form in forms}) == len({form.label for form in forms}) == len(forms)
