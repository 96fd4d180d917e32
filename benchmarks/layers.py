"""The history of the layers alone: speed, memory, agreement with the definition."""

from __future__ import annotations

from vocabench.harness import registry

from ._rows import FRAMEWORKS, Cache, LookUp, Score, measure


class _Timed(LookUp):
    version = "3"  # vocabench.harness.measure.timing.DEFINITION, which older commits lack

    def setup_cache(self) -> Cache:
        # asv runs this once for all classes that have it from here, as it does for each task's below and in quality.py.
        return measure("timing")


class ForwardBackward(_Timed):
    figure, unit = "layer_seconds", "seconds"
    track_layer_seconds = LookUp.look_up


class OptimizerStep(_Timed):
    figure, unit = "layer_step_seconds", "seconds"
    track_layer_step_seconds = LookUp.look_up


class TopK(_Timed):
    figure, unit = "topk_seconds", "seconds"
    track_topk_seconds = LookUp.look_up


class RelativeForwardBackward(_Timed):
    figure, unit = "relative_layer_seconds", "full softmax's"
    track_relative_layer_seconds = LookUp.look_up


class RelativeOptimizerStep(_Timed):
    figure, unit = "relative_layer_step_seconds", "full softmax's"
    track_relative_layer_step_seconds = LookUp.look_up


class RelativeTopK(_Timed):
    figure, unit = "relative_topk_seconds", "full softmax's"
    track_relative_topk_seconds = LookUp.look_up


class Memory(_Timed):
    figure, unit = "peak_bytes", "bytes"
    version = "counting 2"  # vocabench.harness.measure.memory.DEFINITION, likewise
    track_peak_bytes = LookUp.look_up


class Agreement(Score):
    figure, unit = "agreement_error", "tolerance"
    params = (FRAMEWORKS, registry.methods())
    track_agreement_error = LookUp.look_up

    def setup_cache(self) -> Cache:
        return measure("agreement")
