"""Kernels and CUDA graphs on a CUDA device; kernels also under Triton's interpreter."""

import importlib.util
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
CUDA = torch.cuda.is_available()
if not CUDA:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs a CUDA device, or Triton for its interpreter", allow_module_level=True)
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("Triton's interpreter needs a NumPy before 2.4", allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"  # read by Triton on import

from vocabench.harness import layers
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.on_torch.device import to_numpy
from vocabench.impls.on_torch.methods import fused_softmax, sohsm
from vocabench.impls.on_torch.ops import topk
from vocabench.impls.on_torch.training import cuda_graphs
from vocabench.impls.on_torch.triton import adagrad_kernel, availability, cluster_kernels, softmax_kernels, topk_kernels
from vocabench.impls.on_torch.two_level import cluster_softmax
from vocabench.impls.on_torch.two_level.words import WordRows

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # from the interpreter

DEVICE = "cuda" if CUDA else "cpu"
ON_CUDA = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
# The interpreter does not support bfloat16, whose relative rounding is 2^-9, and more for sums of products.
DTYPES = [(torch.float32, 1e-5), *([(torch.bfloat16, 2e-2)] if CUDA else [])]


def differentiated(nll, inputs, weight_N):
    copies = [None if value is None else value.clone().requires_grad_() for value in inputs]
    nll_N = nll(*copies)
    nll_N.backward(weight_N.to(nll_N.dtype))
    return [nll_N.detach(), *(value.grad for value in copies if value is not None)]


def assert_near(values, expected, tolerance):
    for value, exact in zip(values, expected, strict=True):
        assert (value.double() - exact).abs().max() <= tolerance * exact.abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=lambda value: str(value))
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("tokens", "clusters", "width", "dim"), [(50, 7, 40, 24), (1, 3, 8, 16), (300, 4, 72, 100)])
def test_the_softmax_within_clusters_is_exact(tokens, clusters, width, dim, biased, dtype, tolerance):
    """Clusters differ in size, and some have hundreds of tokens and others none."""
    generator = torch.Generator().manual_seed(tokens)
    size_C = torch.randint(1, width + 1, (clusters,), generator=generator)
    slab_CSD = torch.randn(clusters, width, dim, generator=generator) / dim**0.5
    slab_CSD[torch.arange(width) >= size_C[:, None]] = 0
    bias_CS = torch.randn(clusters, width, generator=generator) if biased else None
    hidden_ND = torch.randn(tokens, dim, generator=generator)
    cluster_N = (torch.rand(tokens, generator=generator) ** 3 * (clusters - 1)).long()
    slot_N = (torch.rand(tokens, generator=generator) * size_C[cluster_N]).long()
    weight_N = torch.randn(tokens, generator=generator).to(DEVICE)
    inputs = [None if v is None else v.to(DEVICE, dtype) for v in (hidden_ND, slab_CSD, bias_CS)]
    target = cluster_N.to(DEVICE), slot_N.to(DEVICE)
    rows = WordRows.of(size_C.to(DEVICE), width, in_slab=True)

    def plain(hidden_ND, slab_CSD, bias_CS):
        return cluster_softmax.in_cluster_nll(hidden_ND, slab_CSD, bias_CS, *target, rows, form=cluster_softmax.LOOP)

    def by_kernels(hidden_ND, slab_CSD, bias_CS):
        return cluster_kernels.in_cluster_nll(hidden_ND, slab_CSD, bias_CS, *target, rows.size_C)

    actual = differentiated(by_kernels, inputs, weight_N)
    expected = differentiated(plain, [None if value is None else value.double() for value in inputs], weight_N)
    assert_near(actual, expected, tolerance)
    with torch.no_grad():
        assert torch.equal(by_kernels(*inputs), actual[0])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.float64, *([torch.bfloat16] if CUDA else [])], ids=str
)
@pytest.mark.parametrize("dim", [16, 100, 512])
def test_scaled_rows_are_bitwise_equal(dim, dtype):
    generator = torch.Generator().manual_seed(dim)
    unscaled_ND = torch.randn(37, dim, generator=generator).to(DEVICE)
    dnll_N = torch.randn(37, generator=generator).to(DEVICE)
    scaled_ND = cluster_kernels._scaled(unscaled_ND, dnll_N, dtype)
    assert torch.equal(scaled_ND, (unscaled_ND * dnll_N[:, None]).to(dtype))


@pytest.mark.parametrize("tokens", [1, 300])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_targets_are_looked_up_in_strided_indices(tokens, index):
    generator = torch.Generator().manual_seed(tokens)
    cluster_V, slot_V = (torch.randint(0, 9, (50,), generator=generator).to(DEVICE) for _ in range(2))
    target_N2 = torch.randint(0, 50, (tokens, 2), generator=generator).to(DEVICE, index)
    for target_N in (target_N2[:, 0], target_N2[:, 0].contiguous()):
        cluster_N, slot_N = cluster_kernels.places(cluster_V, slot_V, target_N)
        assert torch.equal(cluster_N, cluster_V[target_N])
        assert torch.equal(slot_N, slot_V[target_N])


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=lambda value: str(value))
@pytest.mark.parametrize("k", [1, 10, 60])
def test_the_best_of_clusters_are_exact(k, dtype, tolerance):
    """Half of the words are tied, and clusters may have fewer words than requested."""
    generator = torch.Generator().manual_seed(k)
    size_C = torch.randint(1, 25, (9,), generator=generator)
    scores_NCS = torch.randint(-2, 3, (6, 9, 24), generator=generator).float()
    scores_NCS[:3] += torch.randn(3, 9, 24, generator=generator)
    scores_NCS = scores_NCS.to(DEVICE, dtype)
    word_CS = torch.full((9, 24), 216)
    held_CS = torch.arange(24) < size_C[:, None]
    word_CS[held_CS] = torch.randperm(int(size_C.sum()), generator=generator)
    word_CS = word_CS.sort(dim=1).values
    added_CS = torch.randint(0, 2, (9, 24), generator=generator).float().masked_fill(~held_CS, -torch.inf)
    log_cluster_NC = torch.randn(6, 9, generator=generator).log_softmax(dim=1)
    log_cluster_NC[4:] = -2.0
    given = scores_NCS, added_CS.to(DEVICE), log_cluster_NC.to(DEVICE), word_CS.to(DEVICE)
    values_NK, ids_NK = (result.cpu() for result in topk_kernels.best_of_clusters(*given, k))
    joint_NCS = (scores_NCS.cpu().double() + added_CS).log_softmax(dim=2) + log_cluster_NC[:, :, None]
    by_word_NV = torch.empty(6, int(size_C.sum()), dtype=torch.float64)
    by_word_NV[:, word_CS[held_CS]] = joint_NCS[:, held_CS]
    assert_near([values_NK], [by_word_NV.topk(k).values], tolerance)
    assert_near([values_NK], [by_word_NV.gather(1, ids_NK)], tolerance)
    assert all(len(set(row)) == k for row in ids_NK.tolist())
    tied_NK = values_NK[:, 1:] == values_NK[:, :-1]
    assert (ids_NK[:, 1:] > ids_NK[:, :-1])[tied_NK].all()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # from the interpreter
def test_the_best_of_clusters_with_nan_are_words_of_the_vocabulary():
    """One row has NaN everywhere, and one in two clusters, whose empty slots must not be chosen."""
    size_C = torch.tensor([1, 5, 3, 2, 4])
    held_CS = torch.arange(24) < size_C[:, None]
    word_CS = torch.full((5, 24), 15)
    word_CS[held_CS] = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    word_CS = word_CS.sort(dim=1).values
    added_CS = torch.zeros(5, 24).masked_fill(~held_CS, -torch.inf)
    scores_NCS, log_cluster_NC = torch.zeros(2, 5, 24), torch.full((2, 5), 0.2).log()
    scores_NCS[0] = scores_NCS[1, 2:4] = torch.nan
    given = scores_NCS.to(DEVICE), added_CS.to(DEVICE), log_cluster_NC.to(DEVICE), word_CS.to(DEVICE)
    values_NK, ids_NK = (result.cpu() for result in topk_kernels.best_of_clusters(*given, 12))
    assert values_NK[0].isnan().all()
    assert all(len(set(row)) == 12 and set(row) <= set(range(15)) for row in ids_NK.tolist())


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=lambda value: str(value))
def test_the_softmax_by_blocks_is_exact(dtype, tolerance):
    generator = torch.Generator().manual_seed(3)
    logits_NV = (5 * torch.randn(9, 7000, generator=generator)).to(DEVICE, dtype)
    target_N = torch.randint(0, 7000, (9,), generator=generator).to(DEVICE)
    weight_N = torch.randn(9, generator=generator).to(DEVICE)
    results = []
    for steps, steps_dtype in ((softmax_kernels, dtype), (fused_softmax._Plain, torch.float64)):
        wide = torch.float32 if steps_dtype == dtype else steps_dtype
        log_sum_N = torch.full((9,), -torch.inf, device=DEVICE, dtype=wide)
        score_N = torch.zeros_like(log_sum_N)
        blocks = [logits_NV[:, :6000].to(steps_dtype), logits_NV[:, 6000:].to(steps_dtype)]
        for first, block_NB in zip((0, 6000), blocks, strict=True):
            steps.add_block(block_NB.contiguous().clone(), target_N, first, log_sum_N, score_N)
        inputs = target_N, 6000, log_sum_N, weight_N.to(wide)
        results.append([log_sum_N, score_N, steps.differentiate_block(blocks[1].contiguous(), *inputs)])
    assert_near(results[0], results[1], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=lambda value: str(value))
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("padding", [0, 3, 1300])
def test_the_mean_of_losses_ignores_padding(padding, mean, dtype, tolerance):
    """The losses of padding are never read, so that they may be NaN."""
    generator = torch.Generator().manual_seed(padding)
    tokens, width = 1300, 37
    logits_NC = (5 * torch.randn(tokens, width, generator=generator)).to(DEVICE, dtype)
    target_N = torch.randint(0, width, (tokens, 2), generator=generator).to(DEVICE)[:, 0]
    padding_N = (torch.randperm(2 * tokens, generator=generator).view(tokens, 2) < padding).to(DEVICE)[:, 0]
    unknown_N = torch.where(padding_N, torch.nan, 0.0)

    def by_kernels(logits_NC):
        nll_N = softmax_kernels.nll(logits_NC, target_N, width)
        return softmax_kernels.reduced(nll_N + unknown_N, padding_N, mean)

    def plain(logits_NC):
        nll_N = torch.nn.functional.cross_entropy(logits_NC, target_N, reduction="none") + unknown_N
        return nll_N.masked_fill(padding_N, 0.0).sum() / ((~padding_N).sum().clamp(min=1) if mean else 1)

    results = []
    for loss_dtype, loss_of in ((dtype, by_kernels), (torch.float64, plain)):
        logits = logits_NC.to(loss_dtype).clone().requires_grad_()
        loss = loss_of(logits)
        (3 * loss).backward()
        results.append([loss.detach(), logits.grad])
    assert_near(results[0], results[1], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=lambda value: str(value))
@pytest.mark.parametrize("at_once", [32, 4096])
def test_columns_beyond_the_classes_are_not_read(at_once, dtype, tolerance, monkeypatch):
    monkeypatch.setattr(softmax_kernels, "_COLUMNS", at_once)
    generator = torch.Generator().manual_seed(4)
    logits_NB = (5 * torch.randn(9, 72, generator=generator)).to(DEVICE, dtype)
    logits_NB[:, 61:] = torch.nan
    target_N = torch.randint(0, 61, (9,), generator=generator).to(DEVICE)
    weight_N = torch.randn(9, generator=generator).to(DEVICE)
    nll_N, dlogits_NB = differentiated(lambda logits: softmax_kernels.nll(logits, target_N, 61), [logits_NB], weight_N)
    plain = partial(torch.nn.functional.cross_entropy, target=target_N, reduction="none")
    expected = differentiated(plain, [logits_NB[:, :61].double()], weight_N)
    assert_near([nll_N, dlogits_NB[:, :61]], expected, tolerance)
    assert not dlogits_NB[:, 61:].any()


@pytest.mark.parametrize(("dtype", "tolerance"), [*DTYPES, (torch.float16, 5e-3)], ids=lambda value: str(value))
@pytest.mark.parametrize("biased", [False, True])
def test_a_layer_with_an_odd_number_of_clusters_has_exact_gradients(biased, dtype, tolerance, monkeypatch):
    """In half precision its logits are padded, but its gradients have the shape of the parameters."""
    monkeypatch.setattr(availability, "known", lambda dim, dtype: True)
    spec = layers.spec("sohsm", counts=zipf_counts(120), dim=24, bias=biased)
    generator = torch.Generator().manual_seed(7)
    target_N = torch.randint(0, 120, (40,), generator=generator).to(DEVICE)
    hidden_ND = torch.randn(40, 24, generator=generator).to(DEVICE, dtype)
    ours = sohsm.LAYER(replace(spec, form=cluster_softmax.KERNELS.id)).to(DEVICE, dtype)
    exact = sohsm.LAYER(replace(spec, form=cluster_softmax.TILES.id)).to(DEVICE, torch.float64)
    assert len(ours.cluster_weight) % 2 == 1
    for parameter in ours.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 5)
    exact.load_state_dict(ours.state_dict())
    results = []
    for layer in (ours, exact):
        monkeypatch.setattr(availability, "runs_on", lambda tensor, layer=layer: layer is ours)
        hidden = hidden_ND.to(layer.word_weight.dtype, copy=True).requires_grad_()
        loss = layer(hidden, target_N)
        loss.backward()
        results.append([loss.detach(), hidden.grad, *(parameter.grad for parameter in layer.parameters())])
    assert_near(results[0], results[1], tolerance)
    assert all(gradient.is_contiguous() for gradient in results[0][1:])


def test_the_mean_of_losses_has_second_derivatives():
    losses_N = torch.tensor([1.0, 2.0, 3.0], device=DEVICE, requires_grad=True)
    padding_N = torch.tensor([False, True, False], device=DEVICE)
    (first_N,) = torch.autograd.grad(softmax_kernels.reduced(losses_N**3, padding_N, True), losses_N, create_graph=True)
    (second_N,) = torch.autograd.grad(first_N.sum(), losses_N)
    assert first_N.tolist() == [1.5, 0.0, 13.5]
    assert second_N.tolist() == [3.0, 0.0, 9.0]


def test_out_of_range_targets_have_a_loss_of_nan_and_masked_classes_are_ignored(monkeypatch):
    monkeypatch.setattr(softmax_kernels, "_COLUMNS", 16)
    logits_NC = torch.full((3, 40), -torch.inf, device=DEVICE)
    logits_NC[:, 30:32] = 0.0
    nll_N = softmax_kernels.nll(logits_NC, torch.tensor([30, -1, 40], device=DEVICE), 40).cpu()
    assert nll_N[0] == np.float32(np.log(2))
    assert nll_N[1:].isnan().all()
    cluster_V = torch.arange(5, device=DEVICE)
    target_N = torch.tensor([4, -1, 5], device=DEVICE)
    assert cluster_kernels.places(cluster_V, cluster_V, target_N)[0].tolist() == [4, -1, -1]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("width", [5, 64, 1024])
@pytest.mark.parametrize(("columns", "k"), [(1, 1), (50, 7), (700, 10), (700, 16)])
def test_the_best_of_many_tied_scores_are_exact(columns, k, width, named, monkeypatch):
    """Scores have few distinct values. Groups have fewer than k columns, and there are fewer groups than k."""
    monkeypatch.setattr(topk_kernels, "_WIDTH", width)
    generator = torch.Generator().manual_seed(columns)
    scores_NF = torch.randint(-3, 4, (5, columns), generator=generator).float()
    scores_NF[scores_NF == 2] = -torch.inf
    scores_NF[0] = torch.randn(columns, generator=generator)
    scores_NF[:, ::3] *= -1.0  # some zeros become -0
    ids_F = torch.randperm(2 * columns, generator=generator)[:columns] if named else None
    given = scores_NF.to(DEVICE), None if ids_F is None else ids_F.to(DEVICE), k
    actual = [result.cpu() for result in topk_kernels.best_columns(*given)]
    expected = topk.best(scores_NF, k, lambda rows_R, column_RM: column_RM if ids_F is None else ids_F[column_RM])
    for result, exact in zip(actual, expected, strict=True):
        assert torch.equal(result, exact)


@ON_CUDA
@pytest.mark.parametrize("method", ["full_softmax", "sohsm", "huffman", "binary_tree"])
@pytest.mark.parametrize("rows", [1, 16])
def test_decoding_is_captured_as_a_cuda_graph(method, rows):
    spec = layers.spec(method, counts=zipf_counts(5000), dim=64)
    layer = layers.from_spec("torch", spec, "cuda")
    hidden_ND = np.random.default_rng(0).standard_normal((rows, 64), np.float32)
    decode = layer.prepare("topk", hidden_ND, k=10)
    decode()
    assert "as a CUDA graph" in layer.formulation()
    results = []
    native_topk = layer.native.topk
    layer.native.topk = lambda *given: results.append(native_topk(*given)) or results[-1]
    decode = layer.prepare("topk", hidden_ND, k=10)
    decode()
    with torch.inference_mode():
        for tensor in results[-1]:
            tensor.zero_()  # the graph overwrites it
    decode()
    for captured, eager in zip(results[-1], layer.topk(hidden_ND, 10), strict=True):
        assert np.array_equal(to_numpy(captured), eager)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adagrad_is_that_of_pytorch(decay):
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 700), (5000,), (1,)
    settings = {"lr": 0.1, "weight_decay": decay, "initial_accumulator_value": 0.3, "eps": 1e-6}
    values = [torch.randn(shape, generator=generator) for shape in shapes]
    ours, theirs = ([value.clone().to(DEVICE).requires_grad_() for value in values] for _ in range(2))
    optimizers = adagrad_kernel.Adagrad(ours, **settings), torch.optim.Adagrad(theirs, **settings)
    for _ in range(3):
        for parameter, exact in zip(ours, theirs, strict=True):
            parameter.grad = exact.grad = torch.randn(parameter.shape, generator=generator).to(DEVICE)
        for optimizer in optimizers:
            optimizer.step()
    assert_near([value.detach() for value in ours], [value.detach().double() for value in theirs], 1e-6)


@ON_CUDA
def test_a_captured_step_reads_the_current_values_of_its_inputs():
    weight = torch.ones(4, device=DEVICE, requires_grad=True)
    inputs = torch.arange(4.0, device=DEVICE)

    def step():
        weight.grad = None
        (weight * inputs).square().sum().backward()

    step()
    replay = cuda_graphs.captured(step, torch.device(DEVICE, 0))
    assert replay is not None
    inputs.add_(1)
    replay()
    assert torch.equal(weight.grad, 2 * inputs**2)


@ON_CUDA
def test_a_step_that_synchronizes_is_not_captured():
    values = torch.arange(4.0, device=DEVICE)
    assert cuda_graphs.captured(lambda: values.nonzero(), torch.device(DEVICE, 0)) is None
    assert torch.cuda.get_sync_debug_mode() == 0


def test_on_a_cpu_nothing_is_captured():
    assert cuda_graphs.captured(lambda: None, torch.device("cpu")) is None


@ON_CUDA
@pytest.mark.parametrize("method", ["sohsm", "huffman", "fused_softmax"])
def test_all_forms_agree_on_the_device(method):
    inputs = batch(zipf_counts(997), tokens=300, dim=48, seed=3)
    for dtype in ("float32", "bfloat16"):
        spec = layers.spec(method, counts=zipf_counts(997), dim=48, seed=3, dtype=dtype)
        for form in layers.forms("torch", spec, "cuda"):
            layer = layers.from_spec("torch", replace(spec, form=form.id), "cuda")
            assert [str(c) for c in agreement.check_layer(layer, inputs, k=10) if not c.agrees] == [], form.label
