"""JAX layers as values: initial parameters, equality and hashes, and which of them reorganize."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.on_jax.native import native

pytestmark = pytest.mark.many_cells

COUNTS_V = zipf_counts(60)
DIM = 8
METHODS = registry.methods("jax")


def spec_of(method="full_softmax", *, counts=COUNTS_V, dim=DIM, seed=0, dtype="float32", **options):
    return layers.spec(method, counts=counts, dim=dim, seed=seed, dtype=dtype, **options)


@pytest.mark.parametrize("method", METHODS)
def test_initial_parameters_are_those_of_the_specification(method):
    layer = native(spec_of(method, seed=3))
    params, structure = layer.init()
    canonical = layer.to_canonical(structure, params)
    assert structure.keys() == layer.structure().keys()
    for name, value in layer.spec.initial_parameters().items():
        np.testing.assert_array_equal(canonical[name], value.astype(np.float32), err_msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_gives_other_parameters_and_the_same_structure(method):
    layer = native(spec_of(method, seed=3))
    params, structure = layer.init(seed=4)
    canonical = layer.to_canonical(structure, params)
    for name, value in replace(layer.spec, seed=4).initial_parameters().items():
        np.testing.assert_array_equal(canonical[name], value.astype(np.float32), err_msg=name)
    for name, array in layer.structure().items():
        np.testing.assert_array_equal(structure[name], array, err_msg=name)
    same, _ = layer.init(seed=3)
    assert all(np.array_equal(same[name], value) for name, value in layer.init()[0].items())


@pytest.mark.parametrize("dtype", ["float32", "tf32", "float64", "bfloat16"])
def test_initial_parameters_have_the_dtype_of_the_specification(dtype):
    layer = native(spec_of("sohsm", dtype=dtype))
    params, _ = layer.init()
    assert {str(value.dtype) for value in params.values()} == {layer.spec.storage}


def test_initial_arrays_are_placed_on_the_given_device():
    device = jax.devices()[-1]
    params, structure = native(spec_of("huffman"), device).init(device=device)
    assert all(value.devices() == {device} for value in [*params.values(), *structure.values()])


def test_layers_of_equal_specifications_are_equal():
    pairs = [
        (native(spec_of()), native(spec_of())),
        (native(spec_of("sohsm", interval=0)), native(spec_of("sohsm", interval=0))),
        (native(spec_of("class_hsm")), native(spec_of("class_hsm"))),
        (
            native(spec_of("sohsm", clusters=20, cluster=np.arange(60) // 3)),
            native(spec_of("sohsm", clusters=20, cluster=np.arange(60) // 3)),
        ),
    ]
    for first, second in pairs:
        assert first is not second
        assert first == second
        assert hash(first) == hash(second)


def test_layers_of_different_specifications_differ():
    specs = [
        spec_of(),
        spec_of("fused_softmax"),
        spec_of(counts=zipf_counts(61)),
        spec_of(counts=COUNTS_V[::-1].copy()),
        spec_of(dim=16),
        spec_of(seed=1),
        spec_of(dtype="bfloat16"),
        spec_of(dtype="tf32"),
        spec_of("sohsm"),
        spec_of("sohsm", interval=0),
        spec_of("sohsm", clusters=20, cluster=np.arange(60) // 3),
        spec_of("sohsm", clusters=20, cluster=np.arange(60) % 20),
    ]
    different = [native(spec) for spec in specs]
    assert len(set(different)) == len(different)
    assert native(specs[0]) != specs[0]


def test_layers_of_different_forms_differ():
    spec = spec_of("sohsm")
    forms = native(spec).forms(spec)
    assert len({native(replace(spec, form=form.id)) for form in forms}) == len(forms) > 1


def test_a_layer_is_a_static_argument_of_a_compiled_function():
    inputs = batch(COUNTS_V, tokens=5, dim=DIM, seed=1)
    traces = []

    @partial(jax.jit, static_argnums=0)
    def loss(layer, params, structure, hidden_ND, targets_N):
        traces.append(layer)
        return layer.loss(params, structure, hidden_ND, targets_N)

    def call(layer):
        return float(loss(layer, *layer.init(seed=0), inputs.hidden_ND, inputs.targets_N.astype(np.int32)))

    first = call(native(spec_of("huffman")))
    assert call(native(spec_of("huffman"))) == first
    assert len(traces) == 1
    call(native(spec_of("full_softmax")))
    assert len(traces) == 2


def test_arrays_are_hashed_once(monkeypatch):
    layer = native(spec_of())
    hash(layer)
    monkeypatch.setattr("vocabench.impls.spec._digest", None)
    assert hash(layer) == hash(layer)


@pytest.mark.parametrize("method", METHODS)
def test_only_sohsm_with_an_interval_reorganizes(method):
    layer = native(spec_of(method))
    assert layer.reorganizes == (method == "sohsm")
    assert ("statistics" in layer.structure()) == layer.reorganizes


def test_sohsm_without_an_interval_does_not_reorganize():
    assert not native(spec_of("sohsm", interval=0)).reorganizes


TIED = [
    *("chunked_softmax", "full_softmax", "fused_softmax", "inplace_softmax", "optax_cross_entropy"),
    *("class_hsm", "nce", "sohsm"),
]


@pytest.mark.many_cells
@pytest.mark.parametrize("method", TIED)
def test_a_tied_embedding_has_the_gradients_of_both_uses(method):
    layer: Any = native(spec_of(method))
    params, structure = layer.init()
    name = "weight" if "weight" in params else "word_weight"
    embedding_VD = np.asarray(layer.to_canonical(structure, params)[name])
    ids_N, targets_N = np.arange(5, dtype=np.int32), np.arange(20, 25, dtype=np.int32)
    extra = {"key": jax.random.key(0)} if layer.spec.definition.extra else {}

    def loss(inputs_VD, outputs_VD):
        tied = layer.tie({key: value for key, value in params.items() if key != name}, structure, outputs_VD)
        return layer.loss(tied, structure, jax.numpy.tanh(inputs_VD[ids_N]), targets_N, **extra)

    both = jax.grad(lambda table_VD: loss(table_VD, table_VD))(embedding_VD)
    by_input, by_output = jax.grad(loss, argnums=(0, 1))(embedding_VD, embedding_VD)
    np.testing.assert_allclose(both, by_input + by_output, rtol=1e-5, atol=1e-7)
    tied = layer.tie(params, structure, embedding_VD)
    assert tied.keys() == params.keys()
    for key, value in params.items():
        np.testing.assert_array_equal(tied[key], value, err_msg=key)
    expected = jax.grad(layer.loss)(params, structure, jax.numpy.tanh(embedding_VD[ids_N]), targets_N, **extra)
    np.testing.assert_allclose(by_output, layer.to_canonical(structure, expected)[name], rtol=1e-5, atol=1e-7)
    assert by_input[ids_N].any()


@pytest.mark.parametrize("method", sorted({*METHODS} - {*TIED, "negative_sampling", "sampled_softmax"}))
def test_layers_without_a_vector_for_each_word_refuse_an_embedding(method):
    layer = native(spec_of(method))
    with pytest.raises(BadInput, match=f"tie of {method}: allowed: methods with a .V, D. weight of words"):
        layer.tie(*layer.init(), np.zeros((60, DIM), np.float32))


def test_an_embedding_of_another_size_is_refused():
    layer = native(spec_of())
    with pytest.raises(BadInput, match=r"embedding has shape \(61, 8\): allowed: \(60, 8\)"):
        layer.tie(*layer.init(), np.zeros((61, DIM), np.float32))


@pytest.mark.parametrize("seed", [-1, 1.5, "1", "key"])
def test_a_seed_that_is_no_whole_number_is_refused_in_one_line(seed):
    given = jax.random.key(0) if seed == "key" else seed
    with pytest.raises(ValueError, match=r"^seed=.*: allowed: a whole number from 0$") as refused:
        native(spec_of()).init(given)
    assert "\n" not in str(refused.value)
