"""Calls of native layers in processes of their own: each equals the definition or is refused, and none dies."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.impls.native_calls import BAD_TARGETS, NAMES, VOCAB, Call
from vocabench.harness import registry
from vocabench.impls.calls import has_z_loss

pytestmark = pytest.mark.many_cells

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
PAIRS = [(framework, method) for framework in FRAMEWORKS for method in registry.methods(framework)]
EXAMPLES = 60
SLOW_EXAMPLES = 2000
SEED = 20261127


class Process:
    """A process that makes calls, started again after it died."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self._child: subprocess.Popen[str] | None = None

    def outcome(self, call: Call) -> str:
        if self._child is None:
            arguments = [sys.executable, "-m", "tests.impls.native_calls", self.framework]
            self._child = subprocess.Popen(
                arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(dataclasses.asdict(call)) + "\n")
        self._child.stdin.flush()
        for line in self._child.stdout:
            if line.startswith("OUTCOME "):
                return line.removeprefix("OUTCOME ").strip()
        _, errors = self._child.communicate()
        code, self._child = self._child.returncode, None
        return f"died with {code}: {errors[-300:]}"

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[str, Process]]:
    """Return a process for each framework, which starts with its first call."""
    made = {framework: Process(framework) for framework in FRAMEWORKS}
    yield made
    for process in made.values():
        process.close()


def needed(name: str) -> dict[str, Any]:
    """Return the arguments that a call cannot do without."""
    return {"topk": {"k": 3}, "beam": {"k": 3, "width": 8}}.get(name, {})


IN_LOSS = ("loss", "grad")
# (calls that have the argument, argument, value)
FAULTS: list[tuple[tuple[str, ...], str, Any]] = [
    *((NAMES, "dim", difference) for difference in (-8, 8)),
    (tuple(name for name in NAMES if name != "grad"), "hidden", "int32"),  # no framework differentiates integers
    *(((*IN_LOSS, "target_log_probs"), "targets", target) for target in (*BAD_TARGETS, "float")),
    *(((*IN_LOSS, "target_log_probs"), "number of targets", shape) for shape in ([3], [10], [5, 1], [])),
    *((("topk", "beam"), "k", k) for k in (0, -1, VOCAB + 1, 2.5, True)),
    *((("beam",), "width", width) for width in (0, 2, VOCAB + 1)),
    *((IN_LOSS, "reduction", reduction) for reduction in ("avg", "batchmean", None)),
    *((IN_LOSS, name, 1) for name in ("ignore_idx", "reduce", "weight")),
    *((IN_LOSS, "label_smoothing", smoothing) for smoothing in (-0.1, 1.0, "0.1")),
    *((IN_LOSS, "z_loss", coefficient) for coefficient in (-1.0, "1")),
    *((IN_LOSS, "softcap", cap) for cap in (0.0, -5.0)),
    *((IN_LOSS, "token_weight", shape) for shape in ([3], [5, 1])),
    *((("sample",), "uniforms", how) for how in ("one row",)),
    *((("sample",), "temperature", temperature) for temperature in (0.0, -1.0)),
    *((("sample",), "top_k", k) for k in (0, VOCAB + 1)),
    *((("sample",), "top_p", share) for share in (0.0, 1.5)),
    *(((name,), "ignore_idx", 1) for name in NAMES if name not in IN_LOSS),
]


@pytest.mark.parametrize(("framework", "method"), PAIRS)
def test_a_faulty_call_is_refused_by_the_name_of_the_argument(
    processes: dict[str, Process], framework: str, method: str
) -> None:
    process, wrong = processes[framework], []
    for names, argument, value in FAULTS:
        for name in names:
            outcome = process.outcome(Call(method, name, options=needed(name), fault=(argument, value)))
            if outcome.startswith("unsupported"):
                pytest.skip(outcome)
            named = {"dim": "hidden", "number of targets": "targets"}.get(argument, argument)
            if not outcome.startswith("refused") or named not in outcome or "in 1 lines" not in outcome:
                wrong.append(f"{name} with {argument}={value!r}: {outcome}")
    assert not wrong, "\n".join(wrong)


# `torch.compile` would take minutes for all methods; tests/impls/on_torch/ compiles some.
@pytest.mark.parametrize(("framework", "method"), [pair for pair in PAIRS if pair[0] != "torch"])
def test_a_traced_target_outside_the_vocabulary_has_no_loss(
    processes: dict[str, Process], framework: str, method: str
) -> None:
    process = processes[framework]
    for target in BAD_TARGETS:
        call = Call(method, "loss", compiled=True, fault=("targets", target), target_dtype="int32")
        outcome = process.outcome(call)
        assert outcome == "NaN" or outcome.startswith("unsupported"), target


@st.composite
def calls(draw: st.DrawFn, framework: str) -> Call:
    """Draw a call without a fault."""
    method = draw(st.sampled_from(registry.methods(framework)))
    definition = registry.definition(method)
    name = draw(st.sampled_from(NAMES))
    options: dict[str, Any] = needed(name)
    in_loss = name in IN_LOSS
    if name in ("topk", "beam"):
        k = draw(st.sampled_from([1, 3, VOCAB]))
        options = {"k": k} if name == "topk" else {"k": k, "width": max(k, 8)}
    if in_loss:
        options["reduction"] = draw(st.sampled_from(["mean", "sum", "none"]))
        if draw(st.booleans()) and not definition.train_only_loss:
            options["label_smoothing"] = 0.1
        if draw(st.booleans()) and has_z_loss(definition):
            options["z_loss"] = 0.01
    if name not in ("beam",) and has_z_loss(definition) and draw(st.integers(0, 3)) == 0:
        options["softcap"] = 2.0
    if name == "sample":
        options |= draw(st.sampled_from([{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}]))
        options |= {"softcap": None} if "softcap" in options else {}
    target_dtype = draw(st.sampled_from(["int64", "int32", "int16", "int8", "uint8"]))
    padded = in_loss and target_dtype != "uint8" and draw(st.booleans())
    return Call(
        method,
        name,
        form=draw(st.integers(0, 3)),
        shape=draw(st.sampled_from([(5,), (1,), (0,), (), (2, 3), (2, 0, 3)])),
        dtype=draw(st.sampled_from(["float32", "float32", "float64", "bfloat16"])),
        hidden_dtype=draw(st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"])),
        target_dtype=target_dtype,
        padded=padded,
        compiled=draw(st.integers(0, 3)) == 0,
        options=options,
        weighted=in_loss and draw(st.booleans()),
        without_bias="bias" in definition.options and draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


def run_at_random(process: Process, count: int) -> None:
    """Make calls drawn at random.

    Raises:
        AssertionError: A call is not "ok". All of these calls are right, so that none may be refused.
    """
    made: list[Call] = []

    @seed(SEED)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),  # type: ignore[arg-type]
        report_multiple_bugs=False,
    )
    @given(calls(process.framework))
    def check(call: Call) -> None:
        made.append(call)
        outcome = process.outcome(call)
        assert outcome == "ok" or outcome.startswith("unsupported"), f"{outcome}\n{call}"

    check()
    print(f"{process.framework}: {len(made)} calls drawn with seed {SEED}")


@pytest.mark.lengthy
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_call_drawn_at_random_equals_the_definition(processes: dict[str, Process], framework: str) -> None:
    run_at_random(processes[framework], EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_thousands_of_calls_drawn_at_random_equal_the_definition(processes: dict[str, Process], framework: str) -> None:
    run_at_random(processes[framework], SLOW_EXAMPLES)
