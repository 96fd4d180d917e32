"""The history of what trained models reach: perplexity, 1 - ROUGE, character and phone error rates."""

from __future__ import annotations

from ._rows import FRAMEWORKS, Cache, LookUp, measure

_FEW = (FRAMEWORKS, ["full_softmax", "huffman"])


class Perplexity(LookUp):
    figure = "perplexity"
    track_perplexity = LookUp.look_up

    def setup_cache(self) -> Cache:
        return measure("language_modelling")


class _Summaries(LookUp):
    params = _FEW

    def setup_cache(self) -> Cache:
        return measure("summarization")


class Rouge1(_Summaries):
    figure = "one_minus_rouge1_f1"
    track_one_minus_rouge1_f1 = LookUp.look_up


class Rouge2(_Summaries):
    figure = "one_minus_rouge2_f1"
    track_one_minus_rouge2_f1 = LookUp.look_up


class RougeL(_Summaries):
    figure = "one_minus_rougeL_f1"
    track_one_minus_rougeL_f1 = LookUp.look_up


class _Transcripts(LookUp):
    def setup_cache(self) -> Cache:
        return measure("speech")


class CharacterErrorRate(_Transcripts):
    figure = "cer"
    track_cer = LookUp.look_up


class PhoneErrorRate(_Transcripts):
    figure = "per"
    params = _FEW
    track_per = LookUp.look_up
