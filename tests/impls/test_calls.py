"""The checks of native calls, and what makes specifications equal."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest

import vocabench
from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls import calls
from vocabench.impls.errors import BadInput

pytestmark = pytest.mark.many_cells

METHODS = registry.methods("numpy")


def spec_of(method, vocab=40, **options):
    return layers.spec(method, counts=zipf_counts(vocab), dim=8, **options)


def check_ids_of(sharing, shape, leading=(2, 3), *, integer=True):
    """Check the shape of sampled words for targets (2, 3)."""
    spec = spec_of("negative_sampling", sharing=sharing)
    calls.check_input("sampled_ids", shape, "int64", spec, leading, floating=not integer, integer=integer)


@pytest.mark.parametrize("method", METHODS)
def test_a_specification_survives_pickling_and_copies(method):
    spec = spec_of(method)
    for again in (pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec), copy.copy(spec)):
        assert again == spec
        assert hash(again) == hash(spec)
        assert again.structure_digest == spec.structure_digest
        for name, value in spec.initial_parameters().items():
            np.testing.assert_array_equal(again.initial_parameters()[name], value)


@pytest.mark.parametrize("method", METHODS)
def test_specifications_of_equal_arguments_are_equal_and_others_are_not(method):
    assert spec_of(method) == spec_of(method)
    assert spec_of(method) != spec_of(method, vocab=41)
    assert spec_of(method) != spec_of(method, seed=1)
    assert spec_of(method) != spec_of(method, dtype="float64")


def test_an_array_given_as_an_option_is_part_of_a_specification():
    classes = np.arange(40) % 7
    one, same, other = (
        spec_of("class_hsm", bins="given", cluster=cluster) for cluster in (classes, classes.copy(), (classes + 1) % 7)
    )
    assert one == same == pickle.loads(pickle.dumps(one))
    assert one != other
    assert one.structure_digest != other.structure_digest


def test_a_later_change_of_an_array_changes_no_specification():
    classes = np.arange(40) % 7
    spec = spec_of("class_hsm", bins="given", cluster=classes)
    classes[:] = 0
    assert spec == spec_of("class_hsm", bins="given", cluster=np.arange(40) % 7)


@pytest.mark.parametrize(
    ("method", "options"),
    [("sohsm", {"start": "bigram"}), ("nce", {"sampler": "bigram"}), ("negative_sampling", {"sampler": "bigram"})],
)
def test_pairs_of_words_given_as_an_option_are_part_of_a_specification(method, options):
    pairs_P3 = np.array([[word, (3 * word + 1) % 40, word + 1] for word in range(40)])
    other_P3 = np.array([[word, (7 * word + 2) % 40, word + 1] for word in range(40)])
    one, same, other = (spec_of(method, pairs=pairs, **options) for pairs in (pairs_P3, pairs_P3.copy(), other_P3))
    assert one == same == pickle.loads(pickle.dumps(one)) == copy.deepcopy(one)
    assert len({one, same, other}) == 2


def test_a_learned_structure_is_part_of_a_specification_and_survives_pickling():
    spec = spec_of("sohsm")
    learned = dataclasses.replace(spec, structure={**spec.structure, "cluster": np.roll(spec.structure["cluster"], 1)})
    again = pickle.loads(pickle.dumps(learned))
    assert learned != spec
    assert learned.structure_digest != spec.structure_digest
    assert again == learned == copy.deepcopy(learned)
    np.testing.assert_array_equal(again.structure["cluster"], learned.structure["cluster"])


def test_equal_specifications_in_two_processes_have_equal_digests():
    code = (
        "from vocabench.harness import layers; from vocabench.harness.measure.workload import zipf_counts\n"
        "spec = layers.spec('sohsm', counts=zipf_counts(40), dim=8)\n"
        "print(spec.digest.hex(), spec.structure_digest.hex())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    spec = spec_of("sohsm")
    assert printed == [spec.digest.hex(), spec.structure_digest.hex()]


def test_the_size_of_the_vocabulary_is_enough_where_no_counts_are_needed():
    assert vocabench.create("numpy", "full_softmax", vocab=10, dim=4).spec.vocab == 10
    assert not registry.definition("fused_softmax").needs_counts
    for method in ("huffman", "sampled_softmax", "nce", "sohsm"):
        with pytest.raises(BadInput, match=f"^counts of {method} is missing: allowed"):
            vocabench.spec(method, vocab=10, dim=4)
    with pytest.raises(BadInput, match=r"^counts of full_softmax is missing.*or vocab"):
        vocabench.spec("full_softmax", dim=4)
    with pytest.raises(BadInput, match=r"^vocab=3 and counts of shape \(2,\): allowed"):
        vocabench.spec("full_softmax", dim=4, vocab=3, counts=[1, 2])
    with pytest.raises(BadInput, match=r"^counts is no array: allowed"):
        vocabench.spec("full_softmax", dim=4, vocab=3, counts=[[1], [1, 2], [3]])
    for vocab in (1, True, 2.5):
        with pytest.raises(BadInput, match=f"^vocab={vocab}: allowed"):
            vocabench.spec("full_softmax", dim=4, vocab=vocab)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: calls.check_hidden((3, 7), 8, "float32", floating=True), r"hidden has shape \(3, 7\).*\(\.\.\., 8\)"),
        (lambda: calls.check_hidden((), 8, "float32", floating=True), r"hidden has shape \(\)"),
        (lambda: calls.check_hidden((3, 8), 8, "int32", floating=False), "hidden has dtype int32"),
        (lambda: calls.check_targets((3,), (2, 3), "int64", integer=True), r"targets has shape \(3,\).*\(2, 3\)"),
        (lambda: calls.check_targets((3,), (3,), "float32", integer=False), "targets has dtype float32"),
        (lambda: calls.check_uniforms((3, 1), (3,), 2, "float32", floating=True), r"uniforms has shape.*\(3, 2\)"),
        (lambda: calls.check_reduction("avg"), "unknown reduction 'avg'.*mean, sum, none"),
        (lambda: calls.check_ignore_index(True), "ignore_index=True"),
        (lambda: calls.check_count("k", 0, 5), "k=0: allowed: a whole number from 1 to 5"),
        (lambda: calls.check_count("width", 2, 5, lowest=3), "width=2: allowed: a whole number from 3 to 5"),
        (lambda: calls.check_sampling(0.0, None, None, 5), "temperature=0.0"),
        (lambda: calls.check_sampling(1.0, 6, None, 5), "top_k=6"),
        (lambda: calls.check_sampling(1.0, None, 1.5, 5), "top_p=1.5"),
        (lambda: calls.check_sampling(float("nan"), None, None, 5), "temperature=nan"),
        (lambda: check_ids_of("batch", (3, 5)), r"sampled_ids has shape \(3, 5\) .*: allowed: \(S,\) word ids"),
        (lambda: check_ids_of("batch", (5,), integer=False), "sampled_ids has shape .* and dtype int64: allowed"),
        (lambda: check_ids_of("token", (5,)), r"sampled_ids has shape \(5,\) .*: allowed: \(2, 3, S\) word ids"),
        (lambda: check_ids_of("token", (5, 5)), r"sampled_ids has shape \(5, 5\)"),
        (lambda: check_ids_of("token", (2, 4, 5)), r"sampled_ids has shape \(2, 4, 5\)"),
        (lambda: check_ids_of("token", (6, 0)), r"sampled_ids has shape \(6, 0\)"),
        (lambda: check_ids_of("token", ()), r"sampled_ids has shape \(\)"),
        (lambda: check_ids_of("token", (2, 4, 5), (None, 3)), r"sampled_ids .*: allowed: \(\?, 3, S\) word ids"),
    ],
)
def test_a_wrong_argument_is_one_line_with_its_name_and_what_is_allowed(check, message):
    with pytest.raises(BadInput, match=message) as refused:
        check()
    assert len(str(refused.value).splitlines()) == 1
    assert "allowed" in str(refused.value)


def test_sizes_that_are_unknown_while_tracing_pass():
    calls.check_hidden((None, None), 8, "float32", floating=True)
    calls.check_targets((None, 3), (2, None), "int64", integer=True)
    for shape in ((None, None), (7, 5), (None, 3, 5), (2, 3, None)):
        check_ids_of("token", shape, (None, 3))
    check_ids_of("token", (6, 5))
    check_ids_of("batch", (None,))
    assert calls.shown((None, 3)) == "(?, 3)"


def test_an_unknown_keyword_is_a_type_error_that_suggests_the_nearest():
    with pytest.raises(TypeError, match="no 'ignore_idx': did you mean 'ignore_index'"):
        calls.check_extra(registry.definition("huffman"), ["ignore_idx"])
    calls.check_extra(registry.definition("nce"), ["sampled_ids", "correction"])
