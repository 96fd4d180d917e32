"""History of the layers by themselves: speed, memory and agreement with the definitions."""

from __future__ import annotations

from ._rows import FRAMEWORKS, Cache, LookUp, Score, harness_module, measure


class _Timed(LookUp):
    version = "5"  # equals vocabench.harness.measure.timing.DEFINITION, which older commits lack

    def setup_cache(self) -> Cache:
        # asv calls this once for all classes that inherit it. The other `setup_cache` methods work the same way.
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
    version = "counting 2"  # from vocabench.harness.measure.memory.DEFINITION, which older commits lack
    track_peak_bytes = LookUp.look_up


class Agreement(Score):
    figure, unit = "agreement_error", "tolerance"
    params = (FRAMEWORKS, harness_module("registry").methods())
    track_agreement_error = LookUp.look_up

    def setup_cache(self) -> Cache:
        return measure("agreement")
