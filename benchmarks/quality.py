"""History of the quality of trained models: perplexity, 1 - ROUGE, character and phone error rates."""

from __future__ import annotations

from ._rows import FRAMEWORKS, Cache, Score, measure

_TWO_METHODS = (FRAMEWORKS, ["full_softmax", "huffman"])


class Perplexity(Score):
    figure = "perplexity"
    track_perplexity = Score.look_up

    def setup_cache(self) -> Cache:
        return measure("language_modelling")


class _Summaries(Score):
    params = _TWO_METHODS

    def setup_cache(self) -> Cache:
        return measure("summarization")


class Rouge1(_Summaries):
    figure = "one_minus_rouge1_f1"
    track_one_minus_rouge1_f1 = Score.look_up


class Rouge2(_Summaries):
    figure = "one_minus_rouge2_f1"
    track_one_minus_rouge2_f1 = Score.look_up


class RougeL(_Summaries):
    figure = "one_minus_rougeL_f1"
    track_one_minus_rougeL_f1 = Score.look_up


class _Transcripts(Score):
    def setup_cache(self) -> Cache:
        return measure("speech")


class CharacterErrorRate(_Transcripts):
    figure = "cer"
    track_cer = Score.look_up


class PhoneErrorRate(_Transcripts):
    figure = "per"
    params = _TWO_METHODS
    track_per = Score.look_up
