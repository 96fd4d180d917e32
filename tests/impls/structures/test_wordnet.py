"""WordNet's file format on a small net of our own invention, and the trees of words that come of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabench.impls.errors import BadInput
from vocabench.impls.structures import huffman, trees, wordnet

LICENCE = "  1 A net invented for these tests; its words mean nothing.\n  2 Any use is allowed.\n"
TYPES = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}

# Name: part of speech, words, hypernyms as (symbol, name). Senses of a lemma are ranked in this order.
NET = {
    "thing": ("noun", ["thing"], []),
    "beast": ("noun", ["beast", "wild_beast"], [("@", "thing")]),
    "gork": ("noun", ["gork", "Gorkel"], [("@", "beast"), ("@", "tool")]),
    "blip": ("noun", ["blip"], [("@", "beast")]),
    "zumf": ("noun", ["zumf"], [("@", "beast")]),
    "rex": ("noun", ["Rex"], [("@i", "gork")]),
    "tool": ("noun", ["tool"], [("@", "thing")]),
    "drill": ("noun", ["drill", "blip"], [("@", "tool")]),
    "go": ("verb", ["go"], []),
    "drill-v": ("verb", ["drill"], [("@", "go")]),
    "curb": ("verb", ["curb"], [("@", "check")]),
    "check": ("verb", ["check"], [("@", "curb")]),
    "red": ("adj", ["red(a)"], []),
    "reddish": ("adj", ["reddish"], []),
    "soon": ("adv", ["soon"], []),
}
EXTRA = {"gork": "~ {rex} n 0000 + {go} v 0101 ", "thing": "~ {tool} n 0000 "}


def net_files():
    """The eight files by name, each synset's offset being the byte at which its line starts."""
    lines = {pos: [] for pos in TYPES}
    for name, (pos, words, hypernyms) in NET.items():
        kind = "s" if name == "reddish" else TYPES[pos]
        spelled = " ".join(f"{word} 0" for word in words)
        extra, gloss = EXTRA.get(name, ""), f'a {name}; "made | up"'
        pointers = "".join(f"{symbol} {{{above}}} {TYPES[NET[above][0]]} 0000 " for symbol, above in hypernyms) + extra
        number = len(hypernyms) + extra.count("{")
        frames = "02 + 02 00 + 08 01 " if pos == "verb" else ""
        lines[pos].append(
            (
                name,
                f"{{{name}}} 03 {kind} {len(words):02x} {spelled} {number:03d} {pointers}{frames}| {gloss}",
            )
        )
    offset = {}
    for made in lines.values():
        at = len(LICENCE)
        for name, line in made:
            offset[name] = f"{at:08d}"
            at += len(line.format_map({other: "0" * 8 for other in NET})) + 1
    files = {
        f"data.{pos}": LICENCE + "".join(line.format_map(offset) + "\n" for _, line in made)
        for pos, made in lines.items()
    }
    for pos, letter in TYPES.items():
        senses: dict[str, list[str]] = {}
        for name, (where, words, _) in NET.items():
            for word in words if where == pos else []:
                senses.setdefault(word.split("(")[0].lower(), []).append(offset[name])
        files[f"index.{pos}"] = LICENCE + "".join(
            f"{lemma} {letter} {len(own)} 2 @ ~ {len(own)} 0 {' '.join(own)}  \n"
            for lemma, own in sorted(senses.items())
        )
    return files, offset


def written(folder, files):
    for name, text in files.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return wordnet.read(written(tmp_path_factory.mktemp("net"), net_files()[0]))


@pytest.fixture
def named(graph):
    """Synsets of the graph by their names in NET."""
    by_pos = [name for pos in TYPES for name, (where, _, _) in NET.items() if where == pos]
    return {name: number for number, name in enumerate(by_pos)}


def clades(tree):
    """The sets of leaves below inner nodes."""
    leaves, below = len(tree.children) + 1, []
    for pair in tree.children.tolist():
        below.append(frozenset().union(*({c} if c < leaves else below[c - leaves] for c in pair)))
    return below


def assert_tree(tree, vocab):
    trees.check_children(tree.children, vocab)
    assert tree.leaf_word.tolist() == list(range(vocab))
    assert sum(2.0**-n for n in huffman.from_children(tree.children).code_length.tolist()) == 1.0


def test_offsets_of_the_net_are_the_bytes_at_which_lines_start():
    files, offset = net_files()
    for name, (pos, _, _) in NET.items():
        assert files[f"data.{pos}"].encode()[int(offset[name]) :].startswith(offset[name].encode())


def test_the_graph_holds_hypernyms_and_instances(graph, named):
    above = {name: [list(named)[s] for s in graph.hypernyms[number]] for name, number in named.items()}
    assert above == {name: [up for _, up in hypernyms] for name, (_, _, hypernyms) in NET.items()}
    assert [name[0] for name in graph.names] == ["n"] * 8 + ["v"] * 4 + ["a"] * 2 + ["r"]


def test_senses_come_by_rank_and_nouns_first(graph, named):
    assert graph.senses["blip"] == (named["blip"], named["drill"])
    assert graph.senses["drill"] == (named["drill"], named["drill-v"])
    assert graph.senses["gorkel"] == (named["gork"],)
    assert graph.senses["red"] == (named["red"],)


def test_tag_counts_rank_senses_across_parts_of_speech(tmp_path, named):
    files, offset = net_files()
    files["index.sense"] = (
        f"drill%1:03:00:: {offset['drill']} 1 2\ndrill%2:30:00:: {offset['drill-v']} 1 9\n"
        f"reddish%5:00:00:red:00 {offset['reddish']} 1 0\n"
    )
    senses = wordnet.read(written(tmp_path, files)).senses
    assert senses["drill"] == (named["drill-v"], named["drill"])
    assert senses["blip"] == (named["blip"], named["drill"])


def damaged(file, line, old, new):
    """The net's files with one line changed; `line` counts from the first after the licence."""
    files, _ = net_files()
    rows = files[file].split("\n")
    assert old in rows[line + 1]
    rows[line + 1] = rows[line + 1].replace(old, new, 1)
    files[file] = "\n".join(rows)
    return files


@pytest.mark.parametrize(
    ("file", "line", "old", "new", "message"),
    [
        ("data.noun", 1, '| a thing; "made | up"', "", "no '|' before a gloss"),
        ("data.noun", 1, " n ", " v ", "synset type 'v': allowed: n$"),
        ("data.adj", 1, " a ", " as ", "synset type 'as': allowed: a or s"),
        ("data.noun", 1, " 01 ", " 0g ", "number of words '0g': allowed: a hexadecimal"),
        ("data.noun", 1, " 01 ", " 00 ", "number of words '00': allowed: from 1"),
        ("data.noun", 1, "001 ~", "002 ~", "ends before the pointer symbol"),
        ("data.noun", 1, "001 ~", "-01 ~", "number of pointers '-01'"),
        ("data.noun", 1, "001 ~", "000 ~", "field '~' after the last one"),
        ("data.noun", 1, " n 0000", " x 0000", "part of speech 'x'"),
        ("data.noun", 1, " n 0000", " n 00", "source and target '00': allowed: 4 hexadecimal digits"),
        ("data.noun", 2, "@ 0", "@ 9", "synset n9[0-9]+ is in no data file"),
        ("data.noun", 1, "0", "", "synset offset '[0-9]{7}': allowed: 8 digits"),
        ("data.verb", 1, "+ 02", "- 02", "frame '-'"),
        ("data.verb", 1, "02 + 02 00 ", "02 ", "ends before the frame"),
        ("index.noun", 1, " n ", " v ", "part of speech 'v': allowed: n"),
        ("index.noun", 1, " n 1 ", " n 2 ", "ends before the synset offset"),
        ("index.noun", 1, " n 1 ", " n 0 ", "number of synsets '0': allowed: from 1"),
        ("index.noun", 1, "@ ~ 1", "@ ~ one", "number of senses 'one'"),
        ("index.noun", 1, " 0 0", " 0 9", "synset n9[0-9]+ is in no data file"),
        ("index.noun", 2, "blip", "beast", "lemma 'beast' is there twice"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, file, line, old, new, message):
    written(tmp_path, damaged(file, line, old, new))
    with pytest.raises(BadInput, match=message) as caught:
        wordnet.read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / file}:{line + 2}: ")
    assert "\n" not in str(caught.value)


def test_a_line_twice_is_refused(tmp_path):
    files, _ = net_files()
    files["data.adv"] += files["data.adv"].removeprefix(LICENCE)
    with pytest.raises(BadInput, match=r"data\.adv:4: synset r[0-9]{8} is there twice"):
        wordnet.read(written(tmp_path, files))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drill%7:03:00:: 00000000 1 2\n", "sense key 'drill%7:03:00::'"),
        ("drill 00000000 1 2\n", "sense key 'drill'"),
        ("drill%1:03:00:: 99999999 1 2\n", "synset n99999999 is in no data file"),
    ],
)
def test_a_malformed_sense_is_named(tmp_path, text, message):
    with pytest.raises(BadInput, match=rf"index\.sense:1: {message}"):
        wordnet.read(written(tmp_path, net_files()[0] | {"index.sense": text}))


@pytest.mark.parametrize(
    ("content", "message"), [(b"\n", "ends before the lemma"), (b"caf\xe9 n 1 0 1 0 00000000\n", "not UTF-8")]
)
def test_what_is_no_line_of_text_is_refused(tmp_path, content, message):
    with pytest.raises(BadInput, match=rf"index\.noun:1: {message}"):
        wordnet.read(written(tmp_path, net_files()[0] | {"index.noun": content}))


def test_a_missing_file_is_named(tmp_path):
    files, _ = net_files()
    del files["index.adv"]
    with pytest.raises(BadInput, match=r"index\.adv: No such file.*: allowed: a folder with"):
        wordnet.read(written(tmp_path, files))


WORDS = ["gork", "Gorkel", "zumf", "blip", "tool", "qwx", "check", "curb", "go", "the", "Rex", "soon", "wild beast"]


@pytest.mark.parametrize("by", ["counts", "vectors"])
def test_words_hang_where_the_graph_says(graph, by):
    rng = np.random.default_rng(0)
    given_by = {"counts_V": np.arange(13)} if by == "counts" else {"vectors_VE": rng.standard_normal((13, 4))}
    tree = wordnet.wordnet_tree(WORDS, graph, rng, **given_by)
    assert_tree(tree, len(WORDS))
    word_clades = [{WORDS[leaf] for leaf in below} for below in clades(tree)]
    for together in (
        {"gork", "Gorkel", "Rex"},  # a synset, its second spelling and its instance; "tool" is the second hypernym
        {"gork", "Gorkel", "Rex", "zumf", "blip", "wild beast"},  # "blip" by its first sense
        {"gork", "Gorkel", "Rex", "zumf", "blip", "wild beast", "tool"},
        {"check", "curb"},  # each other's hypernyms
        {"check", "curb", "go"},  # verbs
        {"qwx", "the"},  # unknown words
    ):
        assert together in word_clades


def test_the_tree_depends_on_the_seed_alone(graph):
    vectors_VE = np.zeros((len(WORDS), 2))
    first, again, other = (
        wordnet.wordnet_tree(WORDS, graph, np.random.default_rng(s), vectors_VE=vectors_VE).children.tolist()
        for s in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_children_of_a_node_are_clustered_by_their_vectors(graph):
    words = ["gork", "Rex", "blip", "zumf", "beast"]  # all but "Rex" children of one node
    vectors_VE = np.array([[9.0, 0.0], [9.4, 0.0], [-9.0, 0.1], [-9.0, -0.1], [9.0, 0.3]])
    tree = wordnet.wordnet_tree(words, graph, np.random.default_rng(0), vectors_VE=vectors_VE)
    assert set(clades(tree)) == {frozenset({0, 1}), frozenset({0, 1, 4}), frozenset({2, 3}), frozenset(range(5))}


def test_children_of_a_node_have_huffman_codes_by_their_counts(graph):
    words = ["gork", "Rex", "blip", "zumf", "beast"]
    tree = wordnet.wordnet_tree(words, graph, np.random.default_rng(0), counts_V=[1, 1, 3, 4, 20])
    assert set(clades(tree)) == {frozenset(s) for s in ({0, 1}, {0, 1, 2}, {0, 1, 2, 3}, set(range(5)))}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_words_and_any_hypernyms_give_one_leaf_a_word(data):
    synsets = data.draw(st.integers(1, 12))
    synset_ids = st.integers(0, synsets - 1)
    graph = wordnet.Graph(
        names=tuple(f"{data.draw(st.sampled_from('nvar'))}{number:08d}" for number in range(synsets)),
        hypernyms=tuple(tuple(data.draw(st.lists(synset_ids, max_size=2))) for _ in range(synsets)),
        senses={letter: tuple(data.draw(st.lists(synset_ids, max_size=2))) for letter in "abcdefgh"},
    )
    words = data.draw(st.lists(st.sampled_from("abcdefghijkl"), min_size=2, max_size=20))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    if data.draw(st.booleans()):
        tree = wordnet.wordnet_tree(words, graph, rng, vectors_VE=rng.standard_normal((len(words), 3)))
    else:
        tree = wordnet.wordnet_tree(words, graph, rng, counts_V=rng.integers(0, 9, len(words)) + 1)
    assert_tree(tree, len(words))


@pytest.mark.parametrize(
    ("words", "given_by", "message"),
    [
        (["gork"], {"counts_V": [1, 2]}, "words holds 1"),
        (["gork", "go"], {}, "neither of vectors_VE and counts_V"),
        (["gork", "go"], {"counts_V": [1, 2], "vectors_VE": np.eye(2)}, "both of vectors_VE and counts_V"),
        (["gork", "go"], {"counts_V": [1, 2, 3]}, "3 words: allowed: 2"),
        (["gork", "go"], {"vectors_VE": np.eye(3)}, "3 words: allowed: 2"),
        (["gork", "go"], {"counts_V": [1, -2]}, "negative"),
    ],
)
def test_bad_arguments_of_wordnet_tree_are_refused(graph, words, given_by, message):
    with pytest.raises(BadInput, match=message):
        wordnet.wordnet_tree(words, graph, np.random.default_rng(0), **given_by)
