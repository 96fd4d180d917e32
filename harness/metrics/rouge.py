"""ROUGE-1, ROUGE-2 and ROUGE-L of summaries (Lin 2004), matched by the rouge-score library.

A `Rouge` fixes everything that must be equal before two figures can be compared, and its `signature` states it. The two
common ones are `GIGAWORD`, full-length F1, and `DUC_2004`, recall of the first 75 bytes over several references.

Similarities to the script ROUGE-1.5.5 and differences from it:

- Each sample has a score, and the score of a system is their mean (`-t 0`). The script rounds each score to five
  digits; this module does not.
- Words are runs of a-z and 0-9 in lower case, separated by everything else. "#" for a digit and letters outside ASCII
  are therefore not part of a word, as in the script. References of which most letters are outside ASCII are refused
  unless `tokens` is "unicode", whose words are runs of letters with their marks and digits of any script, in lower case
  and Unicode NFC. Each character of a script that is written without spaces, such as Chinese, is a word of its own.
- Stemming uses NLTK's Porter stemmer, for words of more than three letters. The script's `-m` looks up WordNet's
  exceptions first, so stemmed scores can differ slightly.
- `limit` is the script's `-b`: the text is cut at that many bytes of UTF-8, including line ends. A word that is cut
  keeps its part before the cut, which counts as a word and rarely matches one. Characters are never cut: an incomplete
  one is removed. The script cuts the references in the same way, in contrast to its help text, and so does
  `cuts_references`.
- References: see `Rouge.references`. The script does not jackknife since version 1.4.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from rouge_score import rouge_scorer, tokenizers

from vocabench.harness.measure.stats import Interval
from vocabench.harness.metrics import bootstrap
from vocabench.harness.metrics.bootstrap import RESAMPLES, Difference
from vocabench.impls.errors import BadInput, unknown

MEASURES = ("rouge1", "rouge2", "rougeL")
QUANTITIES = ("precision", "recall", "f1")
LCS = ("whole", "lines")
REFERENCES = ("average", "best", "jackknife")
TOKENS = ("ascii", "unicode")

# Han, the kana, Thai, Lao, Myanmar and Khmer.
_UNSPACED = re.compile(
    "[\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"
)

Found = TypeVar("Found")


@dataclass(frozen=True)
class Rouge:
    """The rules by which summaries are scored.

    Attributes:
        stemming: Whether words are stemmed, by the rules of English.
        tokens: The words: "ascii", those of the script, or "unicode", those of any script.
        lcs: The sequences for ROUGE-L: the "whole" summary as one sequence, or its "lines", one sentence each, with the
            clipped union of their matches (Lin 2004, section 3.2; the script; rougeLsum). For texts of one line both
            are equal.
        references: How several references are combined. "average" sums hits and n-grams over them, the script's default
            (`-f A`). "best" takes the one with the highest recall, or the first of equals (`-f B`; Lin 2004, section
            2.1). "jackknife" leaves out each of them in turn, takes the best of the others, and averages precision,
            recall and F1 (the same section; the script before version 1.4). For one reference all three are equal.
        limit: Number of bytes of the candidate that count; 0 for all.
        cuts_references: Whether the references are cut too.
    """

    stemming: bool = False
    tokens: str = "ascii"
    lcs: str = "lines"
    references: str = "average"
    limit: int = 0
    cuts_references: bool = False

    def __post_init__(self) -> None:
        if self.lcs not in LCS:
            raise unknown("lcs", self.lcs, LCS)
        if self.references not in REFERENCES:
            raise unknown("rule for references", self.references, REFERENCES)
        if self.tokens not in TOKENS:
            raise unknown("rule for tokens", self.tokens, TOKENS)
        if self.stemming and self.tokens != "ascii":
            raise BadInput(f"stemming with tokens={self.tokens}: allowed: with tokens=ascii")
        if self.limit < 0:
            raise BadInput(f"limit of {self.limit} bytes: allowed: from 1, or 0 for none")
        if self.cuts_references and not self.limit:
            raise BadInput("cuts_references with a limit of 0 bytes: allowed: with a limit from 1")

    @property
    def signature(self) -> str:
        """Everything that a score depends on, in one line."""
        cut = f"{self.limit}-bytes-of-{'both' if self.cuts_references else 'candidate'}" if self.limit else "none"
        parts = {
            "rouge-score": metadata.version("rouge-score"),
            "nltk": metadata.version("nltk") if self.stemming else None,
            "stemming": "porter" if self.stemming else "no",
            "tokens": {"ascii": "lower-case-a-z-0-9", "unicode": "lower-case-words-of-any-script"}[self.tokens],
            "lcs": self.lcs,
            "references": self.references,
            "limit": cut,
            "mean": "of-samples",
        }
        return "|".join(f"{name}:{value}" for name, value in parts.items() if value is not None)

    def per_sample(self, candidates: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        """Score each sample, for means, intervals and tests.

        Args:
            candidates: S summaries. An empty summary scores 0.
            references: One or more references for each summary.

        Returns:
            (S, 3, 3) in [0, 1]: sample, one of `MEASURES`, one of `QUANTITIES`.

        Raises:
            BadInput: There are no samples, the numbers of candidates and of lists of references differ, a sample has
                no reference, or `tokens` has no words for the script of the references.
        """
        if not candidates or len(candidates) != len(references):
            raise BadInput(
                f"{len(candidates):,} candidates, references for {len(references):,}: allowed: as many of both, from 1"
            )
        for number, each in enumerate(references, start=1):
            # A bare string would be scored letter by letter.
            if isinstance(each, str) or not each:
                raise BadInput(f"sample {number:,}: references {each!r}: allowed: a list of one text or more")
        if self.tokens == "ascii":
            _check_script(references)
        matcher = _Matcher(self)
        return np.stack(
            [
                self._combine(matcher.counts(candidate, each))
                for candidate, each in zip(candidates, references, strict=True)
            ]
        )

    def _combine(self, counts_RM3: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the scores of one sample, (3, 3), from its counts for each of R references."""
        if self.references == "average":
            return _scores(counts_RM3.sum(axis=0))
        everyone = np.arange(len(counts_RM3))
        if self.references == "best" or len(everyone) == 1:
            return _best(counts_RM3)
        return np.mean([_best(counts_RM3[everyone != left_out]) for left_out in everyone], axis=0)


GIGAWORD = Rouge()
DUC_2004 = Rouge(limit=75, cuts_references=True)


def aggregate(
    values_SMQ: NDArray[np.float64], resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, dict[str, Interval]]:
    """Return means over samples with their 95 % bootstrap intervals, by measure and quantity."""
    found = bootstrap.intervals(values_SMQ.reshape(len(values_SMQ), -1), resamples, seed)
    return _named(found)


def compare(
    first_SMQ: NDArray[np.float64], second_SMQ: NDArray[np.float64], resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, dict[str, Difference]]:
    """Return the differences between two systems on the same samples, by measure and quantity.

    Raises:
        BadInput: The numbers of samples differ.
    """
    if len(first_SMQ) != len(second_SMQ):
        raise BadInput(f"systems with {len(first_SMQ):,} and {len(second_SMQ):,} samples: allowed: the same samples")
    flat = [values_SMQ.reshape(len(values_SMQ), -1) for values_SMQ in (first_SMQ, second_SMQ)]
    return _named(bootstrap.differences(flat[0], flat[1], resamples, seed))


def cut(text: str, limit: int) -> str:
    """Return the first `limit` bytes of the text in UTF-8, without an incomplete character; 0 returns all of it."""
    return text.encode()[:limit].decode(errors="ignore") if limit else text


def _check_script(references: Sequence[Sequence[str]]) -> None:
    """Raise `BadInput` if most letters of the references are outside ASCII."""
    letters = [sign for texts in references for text in texts for sign in text if sign.isalpha()]
    dropped = [sign for sign in letters if not sign.isascii()]
    if 2 * len(dropped) > len(letters):
        raise BadInput(
            f"references with letters such as {dropped[0]!r} ({len(dropped) / len(letters):.0%} of all letters), which "
            "the tokenizer of ROUGE drops: allowed: words of a-z, or the setting rouge_tokens=unicode"
        )


class _WordsOfAnyScript(tokenizers.Tokenizer):
    """Runs of letters with their marks and of digits, in lower case and NFC; see `Rouge.tokens`."""

    def tokenize(self, text: str) -> list[str]:
        text = unicodedata.normalize("NFC", text.lower())
        # The joiners between the letters of some Indic scripts are neither letters nor marks.
        text = text.replace("\u200c", "").replace("\u200d", "")
        kept = "".join(sign if unicodedata.category(sign)[0] in "LMN" else " " for sign in text)
        return _UNSPACED.sub(r" \g<0> ", kept).split()


class _Matcher:
    """Counts of matches by the rouge-score library."""

    def __init__(self, rouge: Rouge) -> None:
        self.rouge = rouge
        english = rouge.tokens == "ascii"
        self.tokenizer = tokenizers.DefaultTokenizer(rouge.stemming) if english else _WordsOfAnyScript()
        self.lcs = {"whole": "rougeL", "lines": "rougeLsum"}[rouge.lcs]
        self.scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", self.lcs], tokenizer=self.tokenizer)

    def counts(self, candidate: str, references: Sequence[str]) -> NDArray[np.int64]:
        """Return (R, 3, 3): hits, and n-grams of the candidate and of the reference, for each reference and measure.

        The library returns shares only, so the hits are the share of the n-grams of the reference times their number.
        """
        candidate = cut(candidate, self.rouge.limit)
        limit = self.rouge.limit if self.rouge.cuts_references else 0
        own = self._sizes(candidate)
        found = []
        for reference in (cut(each, limit) for each in references):
            theirs = self._sizes(reference)
            shares = self.scorer.score(reference, candidate)
            hits = [round(shares[name].recall * size) for name, size in zip(self._names(), theirs, strict=True)]
            found.append(list(zip(hits, own, theirs, strict=True)))
        return np.array(found)

    def _names(self) -> tuple[str, str, str]:
        return "rouge1", "rouge2", self.lcs

    def _sizes(self, text: str) -> tuple[int, int, int]:
        """Return the numbers of words, of bigrams, and of words again, in which a subsequence is measured."""
        words = len(self.tokenizer.tokenize(text))
        return words, max(words - 1, 0), words


def _scores(counts_M3: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return precision, recall and F1 of each measure, (3, 3); 0 if there are no n-grams."""
    hits_M, own_M, theirs_M = counts_M3.T
    precision_M = hits_M / np.maximum(own_M, 1)
    recall_M = hits_M / np.maximum(theirs_M, 1)
    # 2PR / (P + R) is 0 / 0 without a hit.
    f1_M = 2 * hits_M / np.maximum(own_M + theirs_M, 1)
    return np.stack([precision_M, recall_M, f1_M], axis=1)


def _best(counts_RM3: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the scores for the reference with the highest recall, chosen for each measure."""
    scores_RMQ = np.stack([_scores(counts_M3) for counts_M3 in counts_RM3])
    best_M = scores_RMQ[:, :, QUANTITIES.index("recall")].argmax(axis=0)
    return scores_RMQ[best_M, np.arange(len(MEASURES))]


def _named(found: Sequence[Found]) -> dict[str, dict[str, Found]]:
    each = iter(found)
    return {measure: {quantity: next(each) for quantity in QUANTITIES} for measure in MEASURES}
