"""Binary trees over words from the is-a hierarchy of WordNet (Morin and Bengio 2005), read from WordNet 3 files.

The files are those of `wndb(5WN)`. `data.<pos>` has one line per synset. `index.<pos>` has one line per lemma, with its
synsets from the most to the least frequent sense. The optional file `index.sense` of `senseidx(5WN)` has counts that
compare senses across parts of speech.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.spec import check_counts
from vocabench.impls.structures import huffman
from vocabench.impls.structures.trees import Tree, check_vectors, mixture_tree, renumber

# Parts of speech, in the order used for senses of equal count, with the synset types of their data files.
_TYPES = {"noun": ("n",), "verb": ("v",), "adj": ("a", "s"), "adv": ("r",)}
_LETTERS = ("n", "v", "a", "r")
_SENSE_TYPES = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
_HYPERNYMS = ("@", "@i")

_OFFSET = (re.compile(r"[0-9]{8}"), "8 digits")
_DECIMAL = (re.compile(r"[0-9]{1,18}"), "a decimal number of at most 18 digits")
_HEX = (re.compile(r"[0-9a-fA-F]{1,16}"), "a hexadecimal number of at most 16 digits")
_SOURCE = (re.compile(r"[0-9a-fA-F]{4}"), "4 hexadecimal digits")
_ANY = (re.compile(r"\S+"), "a word")


@dataclass(frozen=True)
class Graph:
    """Hierarchy of the S synsets of WordNet, numbered by part of speech and then as in the data file.

    Attributes:
        names: Part of speech (n, v, a or r) and offset of each synset.
        hypernyms: Hypernyms and instance hypernyms of each synset, in the order of its line.
        senses: Synsets of each lemma (lower case, underscores for blanks), the most frequent sense first.
    """

    names: tuple[str, ...]
    hypernyms: tuple[tuple[int, ...], ...]
    senses: Mapping[str, tuple[int, ...]] = field(repr=False)


@dataclass
class _Line:
    """Parser of one line, which consumes its fields one after the other."""

    path: Path
    number: int
    fields: list[str]
    position: int = 0

    def take(self, what: str, form: tuple[re.Pattern[str], str] = _ANY) -> str:
        pattern, allowed = form
        if self.position == len(self.fields):
            raise self.wrong(f"ends before the {what}", allowed)
        value = self.fields[self.position]
        self.position += 1
        if not pattern.fullmatch(value):
            raise self.wrong(f"{what} {value!r}", allowed)
        return value

    def count(self, what: str, form: tuple[re.Pattern[str], str] = _DECIMAL, base: int = 10, low: int = 0) -> int:
        value = self.take(what, form)
        if int(value, base) < low:
            raise self.wrong(f"{what} {value!r}", f"from {low}")
        return int(value, base)

    def end(self) -> None:
        if self.position < len(self.fields):
            raise self.wrong(f"field {self.fields[self.position]!r} after the last one", "fields as many as counted")

    def wrong(self, what: str, allowed: str) -> BadInput:
        return BadInput(f"{self.path}:{self.number}: {what}: allowed: {allowed}")


@dataclass(frozen=True)
class _Link:
    """Reference to a synset, resolved once all synsets are read."""

    line: _Line
    name: str

    def among(self, synsets: Mapping[str, int]) -> int:
        if self.name not in synsets:
            raise self.line.wrong(f"synset {self.name} is in no data file", "synsets that are")
        return synsets[self.name]


def read(folder: str | Path) -> Graph:
    """Read the is-a graph from a folder with WordNet's `data.*` and `index.*` files for the four parts of speech.

    Offsets serve as names and are not compared with the positions of lines. Only hypernym (`@`) and instance hypernym
    (`@i`) pointers are kept. Without `index.sense`, the noun senses of a lemma come before its verb, adjective and
    adverb senses.

    Raises:
        BadInput: A file is missing, or a line is malformed, repeated, or refers to a synset that no line defines.
    """
    folder = Path(folder)
    synsets: dict[str, int] = {}
    links: list[list[_Link]] = []
    for pos in _TYPES:
        for line in _lines(folder / f"data.{pos}"):
            name, hypernyms = _data(line, pos)
            if name in synsets:
                raise line.wrong(f"synset {name} is there twice", "each offset once")
            synsets[name] = len(synsets)
            links.append(hypernyms)
    hypernyms = tuple(tuple(link.among(synsets) for link in synset_links) for synset_links in links)

    senses: dict[str, list[int]] = {}
    for pos, letter in zip(_TYPES, _LETTERS, strict=True):
        seen: set[str] = set()
        for line in _lines(folder / f"index.{pos}"):
            lemma, lemma_links = _index(line, letter)
            if lemma in seen:
                raise line.wrong(f"lemma {lemma!r} is there twice", "each lemma once")
            seen.add(lemma)
            senses.setdefault(lemma, []).extend(link.among(synsets) for link in lemma_links)
    times = _times(folder / "index.sense", synsets)
    ranked = {
        lemma: tuple(sorted(lemma_senses, key=lambda synset, lemma=lemma: -times.get((lemma, synset), 0)))
        for lemma, lemma_senses in senses.items()
    }
    return Graph(tuple(synsets), hypernyms, ranked)


def _lines(path: Path) -> Iterator[_Line]:
    """Yield the lines of a database file up to the gloss, without licence lines, which start with two blanks."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}: allowed: a folder with WordNet's data.* and index.* files") from None
    has_gloss = path.name.startswith("data.")
    for number, raw in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        if raw.startswith(b"  "):
            continue
        line = _Line(path, number, [])
        before, bar, _gloss = raw.partition(b"|") if has_gloss else (raw, b"", b"")
        if has_gloss and not bar:
            raise line.wrong("no '|' before a gloss", "a gloss in every line")
        try:
            line.fields = [part.decode() for part in before.split()]
        except UnicodeDecodeError:
            raise line.wrong("not UTF-8", "UTF-8 text") from None
        yield line


def _data(line: _Line, pos: str) -> tuple[str, list[_Link]]:
    """Parse a line of a data file into the name of a synset and its hypernyms."""
    offset = line.take("synset offset", _OFFSET)
    line.count("lexicographer file")
    kind = line.take("synset type")
    if kind not in _TYPES[pos]:
        raise line.wrong(f"synset type {kind!r}", " or ".join(_TYPES[pos]))
    for _ in range(line.count("number of words", _HEX, 16, low=1)):
        line.take("word")
        line.count("lexicographer id", _HEX, 16)
    hypernyms = []
    for _ in range(line.count("number of pointers")):
        symbol, target = line.take("pointer symbol"), line.take("pointer's synset offset", _OFFSET)
        letter = _letter(line, line.take("pointer's part of speech"))
        line.take("pointer's source and target", _SOURCE)
        if symbol in _HYPERNYMS:
            hypernyms.append(_Link(line, letter + target))
    if pos == "verb" and line.position < len(line.fields):
        for _ in range(line.count("number of frames")):
            if line.take("frame") != "+":
                raise line.wrong(f"frame {line.fields[line.position - 1]!r}", "'+', frame number, word number")
            line.count("frame number")
            line.count("frame's word number", _HEX, 16)
    line.end()
    return _letter(line, kind) + offset, hypernyms


def _letter(line: _Line, kind: str) -> str:
    """Return the part of speech of a synset type; satellites (s) are in the file of the other adjectives."""
    letter = "a" if kind == "s" else kind
    if letter not in _LETTERS:
        raise line.wrong(f"part of speech {kind!r}", "n, v, a, s or r")
    return letter


def _index(line: _Line, letter: str) -> tuple[str, list[_Link]]:
    """Parse a line of an index file into a lemma and its synsets, the most frequent first."""
    lemma = line.take("lemma")
    if line.take("part of speech") != letter:
        raise line.wrong(f"part of speech {line.fields[1]!r}", letter)
    synsets = line.count("number of synsets", low=1)
    for _ in range(line.count("number of pointers")):
        line.take("pointer symbol")
    line.count("number of senses")
    line.count("number of tagged senses")
    links = [_Link(line, letter + line.take("synset offset", _OFFSET)) for _ in range(synsets)]
    line.end()
    return lemma, links


def _times(path: Path, synsets: Mapping[str, int]) -> dict[tuple[str, int], int]:
    """Return how often each lemma is tagged with a synset; empty without the file."""
    times: dict[tuple[str, int], int] = {}
    for line in _lines(path) if path.exists() else ():
        lemma, percent, rest = line.take("sense key").partition("%")
        if not percent or rest[:2] not in [f"{digit}:" for digit in _SENSE_TYPES]:
            raise line.wrong(f"sense key {line.fields[0]!r}", "lemma%type:..., with a type from 1 to 5")
        synset = _Link(line, _SENSE_TYPES[rest[0]] + line.take("synset offset", _OFFSET)).among(synsets)
        line.count("sense number")
        times[lemma, synset] = max(times.get((lemma, synset), 0), line.count("tag count"))
        line.end()
    return times


def wordnet_tree(
    words: Sequence[str],
    graph: Graph,
    rng: np.random.Generator,
    *,
    vectors_VE: ArrayLike | None = None,
    counts_V: ArrayLike | None = None,
) -> Tree:
    """Build a tree with one leaf per word, following Morin and Bengio 2005.

    Words are looked up in lower case with underscores for blanks. A word is placed below the synset of its most
    frequent sense, and a synset below its first hypernym. Synsets without a hypernym are placed below their part of
    speech. The parts of speech, and a node for all words that WordNet lacks, are placed below the root. The
    verbs of WordNet 3.0 have one cycle. On a cycle, the synset that comes first in its file is treated as one without a
    hypernym.

    Nodes without words are removed, and a node with one child is replaced by that child. A node with more children
    becomes binary in one of two ways:

        vectors_VE  `trees.mixture_tree` (adaptive) over the mean vectors of the words below each child; the paper uses
                    K-means over TF-IDF vectors
        counts_V    a Huffman code over the total counts of the words below each child, the shortest possible code

    Inner nodes are sorted by descending depth. The same state of `rng` yields the same tree. Counts need no `rng`.

    Args:
        words: Words (V,) of the vocabulary.
        graph: Graph that `read` returned.
        rng: Random number generator for the mixtures.
        vectors_VE: Word vectors (V, E), if `counts_V` is not given.
        counts_V: Word counts (V,), if `vectors_VE` is not given.

    Raises:
        BadInput: There are fewer than two words, not exactly one of vectors and counts is given, or these do not match
            the words.
    """
    vocab = len(words)
    if vocab < 2:
        raise BadInput(f"words holds {vocab}: allowed: a vocabulary of at least 2")
    if vectors_VE is not None and counts_V is None:
        weights_VE = check_vectors(vectors_VE)
    elif counts_V is not None and vectors_VE is None:
        weights_VE = check_counts(counts_V)[:, None]
    else:
        given = "neither" if vectors_VE is None else "both"
        raise BadInput(f"{given} of vectors_VE and counts_V: allowed: exactly one of them")
    if len(weights_VE) != vocab:
        raise BadInput(f"vectors or counts of {len(weights_VE)} words: allowed: {vocab}, one for each of words")

    parent, word_node = _taxonomy(words, graph)
    grown = _Grown(weights_VE, by_counts=vectors_VE is None, rng=rng)
    below: dict[int, list[int]] = {}
    for word, node in enumerate(word_node):
        below.setdefault(node, []).append(word)
    for node in _deepest_first(parent, below):
        item = grown.join(below.pop(node))
        if node in parent:
            below.setdefault(parent[node], []).append(item)
    return Tree(renumber(np.array(grown.children, dtype=np.int64)), np.arange(vocab))


def _taxonomy(words: Sequence[str], graph: Graph) -> tuple[dict[int, int], list[int]]:
    """Return the parent of each required node except the root, and the node to which each word belongs.

    Nodes 0 .. S-1 are the synsets, S .. S+3 the parts of speech, S+4 the node of unknown words and S+5 the root.
    """
    first = len(graph.names)
    unknown, root = first + len(_LETTERS), first + len(_LETTERS) + 1
    above = _one_parent(graph)
    parent: dict[int, int] = {}
    word_node = []
    for word in words:
        senses = graph.senses.get(word.lower().replace(" ", "_"))
        node = senses[0] if senses else unknown
        word_node.append(node)
        while node not in parent and node != root:
            if node >= first:
                parent[node] = root
            else:
                parent[node] = above[node] if above[node] >= 0 else first + _LETTERS.index(graph.names[node][0])
            node = parent[node]
    return parent, word_node


def _one_parent(graph: Graph) -> list[int]:
    """Return the first hypernym of each synset, or -1 if there is none and for the first synset on a cycle."""
    parent = [hypernyms[0] if hypernyms else -1 for hypernyms in graph.hypernyms]
    walk = [-1] * len(parent)  # start of the walk that visited each node
    for start in range(len(parent)):
        node = start
        while node >= 0 and walk[node] < 0:
            walk[node] = start
            node = parent[node]
        if node >= 0 and walk[node] == start:  # this walk has returned to a node
            cycle = [node]
            while parent[cycle[-1]] != node:
                cycle.append(parent[cycle[-1]])
            parent[min(cycle)] = -1
    return parent


def _deepest_first(parent: Mapping[int, int], leaves: Mapping[int, list[int]]) -> list[int]:
    """Return all nodes on the paths from the words to the root, children before parents."""
    depth: dict[int, int] = {}
    for start in leaves:
        way = [start]
        while way[-1] not in depth and way[-1] in parent:
            way.append(parent[way[-1]])
        below = depth.setdefault(way.pop(), 0)
        for node in reversed(way):
            below += 1
            depth[node] = below
    return sorted(depth, key=lambda node: (-depth[node], node))


class _Grown:
    """Binary tree under construction from the leaves, with the sum of the words' weights below each node."""

    def __init__(self, weights_VE: NDArray, *, by_counts: bool, rng: np.random.Generator) -> None:
        self.children: list[list[int]] = []
        self._vocab = len(weights_VE)
        self._by_counts = by_counts
        self._rng = rng
        # Sum of the weights and number of the words below each node: words first, then inner nodes in order.
        self._sums_WE = np.concatenate([weights_VE, np.zeros_like(weights_VE[1:])])
        self._words_W = np.concatenate([np.ones(self._vocab), np.zeros(self._vocab - 1)])

    def join(self, items: list[int]) -> int:
        """Join `items` (words, or inner nodes as V + j) below a new node and return it; a single item is returned."""
        if len(items) == 1:
            return items[0]
        first = self._vocab + len(self.children)
        name = np.concatenate([items, first + np.arange(len(items) - 1)])
        for pair in name[self._binary(items)].tolist():
            here = self._vocab + len(self.children)
            self.children.append(pair)
            self._sums_WE[here] = self._sums_WE[pair].sum(axis=0)
            self._words_W[here] = self._words_W[pair].sum()
        return int(name[-1])

    def _binary(self, items: list[int]) -> NDArray[np.int64]:
        if len(items) == 2:
            return np.array([[0, 1]])
        if self._by_counts:
            return huffman.build(self._sums_WE[items, 0]).children
        means = self._sums_WE[items] / self._words_W[items][:, None].astype(self._sums_WE.dtype)
        return mixture_tree(means, "adaptive", 0.0, self._rng).children
