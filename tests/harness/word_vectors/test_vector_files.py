"""Files of word vectors: what is written is read again, by this project, gensim and fastText, and damage is named."""

import io
import os
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vocabench.harness.word_vectors import vector_files
from vocabench.impls.errors import BadInput

SUFFIXES = (".bin", ".npz", ".txt", ".vec")
TEXT = b"3 2\ncat 1 2\ndog 3 4\nfox 5 6\n"
# Unlike `str.split`, the formats know the white space of ASCII only: a no-break space belongs to a word.
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0 \t\n\v\f\r"), min_size=1, max_size=8)


@st.composite
def tables(draw):
    words = draw(st.lists(WORDS, min_size=1, max_size=6, unique=True))
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    return words, draw(hnp.arrays(np.float32, (len(words), draw(st.integers(1, 4))), elements=finite))


def binary(*rows):
    return b"".join(word + b" " + np.array(values, "<f4").tobytes() + b"\n" for word, *values in rows)


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(table=tables())
def test_what_is_written_is_read_again(suffix, table, tmp_path_factory):
    words, vectors_VD = table
    path = tmp_path_factory.mktemp("vectors") / f"vectors{suffix}"
    vector_files.write(path, words, vectors_VD)
    again = vector_files.read(path, expected_dim=vectors_VD.shape[1])
    assert again.words == tuple(words)
    assert again.vectors_VD.dtype == np.float32
    np.testing.assert_array_equal(again.vectors_VD.view(np.uint32), vectors_VD.view(np.uint32))


def test_the_formats_hold_what_word2vec_writes(tmp_path):
    words, vectors_VD = ["cat", "dög"], np.array([[1.5, -2], [0.1, 1e-9]], np.float32)
    for suffix in SUFFIXES:
        vector_files.write(tmp_path / f"v{suffix}", words, vectors_VD)
    assert (tmp_path / "v.txt").read_text("utf-8") == "2 2\ncat 1.5 -2\ndög 0.100000001 9.99999972e-10\n"
    assert (tmp_path / "v.vec").read_bytes() == (tmp_path / "v.txt").read_bytes()
    assert (tmp_path / "v.bin").read_bytes() == b"2 2\n" + binary((b"cat", 1.5, -2), ("dög".encode(), 0.1, 1e-9))
    with np.load(tmp_path / "v.npz", allow_pickle=False) as arrays:
        assert arrays["words"].tolist() == words
        np.testing.assert_array_equal(arrays["vectors"], vectors_VD)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".txt", b"3 2 \r\ncat 1 2 \r\ndog 3 4 \r\nfox 5 6"),  # trailing spaces, as the original and fastText write
        (".bin", b"3 2\n" + binary((b"cat", 1, 2), (b"dog", 3, 4), (b"fox", 5, 6))[:-1]),
        (".bin", b"3 2\n" + binary((b"cat", 1, 2), (b"dog", 3, 4), (b"fox", 5, 6)).replace(b"\n", b"")),  # gensim's
    ],
)
def test_variants_of_the_formats_are_read(tmp_path, suffix, content):
    path = tmp_path / f"vectors{suffix}"
    path.write_bytes(content)
    read = vector_files.read(path)
    assert read.words == ("cat", "dog", "fox")
    np.testing.assert_array_equal(read.vectors_VD, [[1, 2], [3, 4], [5, 6]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: '': allowed: the number of words and the dimension"),
        (b"cat 1 2\n", "line 1: 'cat 1 2'"),
        (b"0 2\n", "line 1: '0 2'"),
        (b"x" * 10**6, "line 1: 'x{40}': allowed"),
        (b"3 2\ncat 1 2\ndog 3\nfox 5 6\n", "line 3: 1 values after the word: allowed: 2, as line 1 says"),
        (b"3 2\ncat 1 2\ndog 3 4 5\nfox 5 6\n", "line 3: 3 values after the word: allowed: 2"),
        (b"3 2\ncat 1 2\nhot dog 3 4\nfox 5 6\n", "line 3: 3 values after the word: allowed: 2"),
        (b"3 2\ncat 1 2\n\nfox 5 6\n", "line 3: 0 values after the word: allowed: 2"),
        (b"3 2\ncat 1 2\n dog 4\nfox 5 6\n", "line 3: 'dog' is not a number"),
        (b"3 2\ncat 1 2\n 3 4\nfox 5 6\n", "line 3: word '': allowed: at least one character"),
        (b"3 2\ncat 1 2\ndog 3 four\nfox 5 6\n", "line 3: 'four' is not a number: allowed: finite numbers"),
        (b"3 2\ncat 1 2\ndog 3 4_0\nfox 5 6\n", "line 3: '4_0' is not a number"),
        (b"3 2\ncat 1 2\ndog 3 nan\nfox 5 6\n", "line 3: a value of nan: allowed: finite float32 numbers"),
        (b"3 2\ncat 1 2\ndog 3 -inf\nfox 5 6\n", "line 3: a value of -inf"),
        (b"3 2\ncat 1 2\ndog 3 1e39\nfox 5 6\n", "line 3: a value of inf"),
        (b"3 2\ncat 1 2\ndog 3 4\ncat 5 6\n", "line 4: word 'cat' again, after vectors.txt, line 2"),
        (b"3 2\ncat 1 2\nd\xff 3 4\nfox 5 6\n", r"line 3: word 'd\\\\xff' is not UTF-8"),
        (b"3 2\ncat 1 2\nd\tg 3 4\nfox 5 6\n", r"line 3: word 'd\\tg': allowed: at least one character, without white"),
        (b"3 2\ncat 1 2\ndog 3 4\n", "2 lines of words: allowed: 3, as line 1 says"),
        (TEXT + b"owl 7 8\n", "4 lines of words: allowed: 3"),
        (b"9999999999 2\ncat 1 2\n", "1 lines of words: allowed: 9999999999"),
        (b"3 9999999999\ncat 1 2\n", "line 2: 2 values after the word: allowed: 9999999999"),
    ],
)
def test_damaged_text_is_named_with_its_line(tmp_path, content, message):
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=f"^vectors.txt[,:].*{message}") as raised:
        vector_files.read(path)
    assert "\n" not in str(raised.value)


ROWS = binary((b"cat", 1, 2), (b"dog", 3, 4), (b"fox", 5, 6))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"3\n" + ROWS, "line 1: '3': allowed: the number of words and the dimension"),
        (b"3 2\n" + ROWS[:20], "20 bytes after line 1: allowed: 3 words of 2 values"),
        (b"3 2\n" + ROWS[:-3], "word 3: the file ends before its values do"),
        (b"3 2\n" + binary((b"cat", 1, 2), (b"dog" * 9, 3, 4)), "word 3: the file ends before its values do"),
        (b"2 2\n" + ROWS, "13 bytes after word 2: allowed: 2 words"),
        (b"9999999999 9999999999\n" + ROWS, "bytes after line 1: allowed: 9999999999 words"),
        (b"2 2\n" + binary((b"cat", 1, 2), (b"dog", 3, np.nan)), "word 2: a value of nan"),
        (b"2 2\n" + binary((b"cat", 1, 2), (b"cat", 3, 4)), "word 2: word 'cat' again, after vectors.bin, word 1"),
        (b"2 2\n" + binary((b"cat", 1, 2), (b"d\xe9", 3, 4)), r"word 2: word 'd\\\\xe9' is not UTF-8"),
        (b"2 2\n" + binary((b"cat", 1, 2), (b"d\ng", 3, 4)), r"word 2: word 'd\\ng': allowed"),
    ],
)
def test_damaged_binary_is_named_with_its_word(tmp_path, content, message):
    path = tmp_path / "vectors.bin"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=f"^vectors.bin[,:].*{message}"):
        vector_files.read(path)


VECTORS = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK", "not a zip file: allowed: an .npz file"),
        (npz(vectors=VECTORS), "no array words: allowed: words and vectors"),
        (npz(other=VECTORS), "no array words or vectors"),
        (npz(words=np.array([1, 2]), vectors=VECTORS), r"words of shape \(2,\) and dtype int64"),
        (npz(words=np.array([["a", "b"]]), vectors=VECTORS), r"words of shape \(1, 2\) and dtype <U1"),
        (npz(words=np.array(["a", "b"], object), vectors=VECTORS), "words.npy holds object"),
        (npz(words=np.array(["a", "b", "c"]), vectors=VECTORS), r"vectors of shape \(2, 3\) and .* for 3 words"),
        (npz(words=np.array(["a", "b"]), vectors=VECTORS.astype(float)), "and dtype float64 for 2 words"),
        (npz(words=np.array(["a", "b"]), vectors=VECTORS[:, 0]), r"vectors of shape \(2,\)"),
        (npz(words=np.array(["a", "b"]), vectors=VECTORS[:, :0]), r"vectors of shape \(2, 0\)"),
        (npz(words=np.array(["a", "b"]), vectors=VECTORS * np.inf), "word 1: a value of inf"),
        (npz(words=np.array(["a", "a"]), vectors=VECTORS), "word 2: word 'a' again"),
        (npz(words=np.array(["a", "b c"]), vectors=VECTORS), "word 2: word 'b c': allowed: .* without white space"),
    ],
)
def test_damaged_archives_are_refused(tmp_path, content, message):
    path = tmp_path / "vectors.npz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=f"^vectors.npz[,:].*{message}"):
        vector_files.read(path)


def test_an_archive_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "vectors.npz"
    content = npz(words=np.array(["a", "b"]), vectors=VECTORS)
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        with pytest.raises(BadInput, match=r"^vectors.npz: "):
            vector_files.read(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_another_dimension_than_the_expected_one_is_refused(tmp_path, suffix):
    path = tmp_path / f"vectors{suffix}"
    vector_files.write(path, ["a", "b"], VECTORS)
    assert vector_files.read(path, expected_dim=3).words == ("a", "b")
    with pytest.raises(BadInput, match="vectors of 3 values: allowed: 4"):
        vector_files.read(path, expected_dim=4)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("words", "vectors_VD", "message"),
    [
        (["a", "New York"], VECTORS, "word 2: word 'New York': allowed: at least one character, without white space"),
        (["a", "b\n"], VECTORS, r"word 2: word 'b\\n': allowed"),
        (["a", "b\0"], VECTORS, r"word 2: word 'b\\x00': allowed"),
        (["", "b"], VECTORS, "word 1: word '': allowed: at least one character"),
        (["a", "\ud800"], VECTORS, r"word 2: word '\\ud800': allowed: text that UTF-8 can encode"),
        (["a", "a"], VECTORS, "word 2: word 'a' again"),
        (["a"], VECTORS, r"vectors of shape \(2, 3\) and dtype float32 for 1 words"),
        ([], VECTORS[:0], r"vectors of shape \(0, 3\)"),
        (["a", "b"], VECTORS.astype(int), "dtype int64"),
        (["a", "b"], VECTORS.astype(float) * [[1], [1e39]], "word 2: a value of inf"),
    ],
)
def test_what_cannot_be_written_is_refused_and_the_file_stays(tmp_path, suffix, words, vectors_VD, message):
    path = tmp_path / f"vectors{suffix}"
    path.write_bytes(b"before")
    with pytest.raises(BadInput, match=message):
        vector_files.write(path, words, vectors_VD)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == [path.name]


def test_unknown_suffixes_and_missing_files_are_refused(tmp_path):
    for act in (vector_files.check_suffix, vector_files.read, lambda path: vector_files.write(path, ["a"], [[1.0]])):
        with pytest.raises(BadInput, match=r"suffix of a file of word vectors '\.vecs': did you mean '\.vec'"):
            act(tmp_path / "vectors.vecs")
    with pytest.raises(BadInput, match="no such file"):
        vector_files.read(tmp_path / "vectors.vec")


def test_20_000_words_are_read_from_text_in_seconds(tmp_path):
    path = tmp_path / "vectors.txt"
    vectors_VD = np.random.default_rng(0).standard_normal((20_000, 128)).astype(np.float32)
    vector_files.write(path, [f"word{number}" for number in range(20_000)], vectors_VD)
    started = time.process_time()
    again = vector_files.read(path, expected_dim=128)
    assert time.process_time() - started < 4  # 1 s on an idle core
    np.testing.assert_array_equal(again.vectors_VD, vectors_VD)


def nearest(vectors_VD, count):
    unit_VD = vectors_VD / np.linalg.norm(vectors_VD, axis=1, keepdims=True)
    cosine_VV = unit_VD @ unit_VD.T
    np.fill_diagonal(cosine_VV, -np.inf)
    return np.argsort(-cosine_VV, axis=1)[:, :count]


SPOKEN = ["cat", "dög", "日本", "a\u00a0b", "x_1", "\u2028", "</s>", "1e5", "-", "naïve"]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("suffix", [".txt", ".bin", ".vec"])
def test_gensim_finds_the_same_neighbours(tmp_path, suffix):
    keyed_vectors = pytest.importorskip("gensim.models").KeyedVectors
    path = tmp_path / f"vectors{suffix}"
    vectors_VD = np.random.default_rng(1).standard_normal((len(SPOKEN), 7)).astype(np.float32)
    vector_files.write(path, SPOKEN, vectors_VD)
    loaded = keyed_vectors.load_word2vec_format(str(path), binary=suffix == ".bin")
    assert loaded.index_to_key == SPOKEN
    np.testing.assert_array_equal(loaded.vectors, vectors_VD)
    for word, others in zip(SPOKEN, nearest(vectors_VD, 3), strict=True):
        assert [name for name, _ in loaded.most_similar(word, topn=3)] == [SPOKEN[other] for other in others]
    back = tmp_path / f"back{suffix}"
    loaded.save_word2vec_format(str(back), binary=suffix == ".bin")
    again = vector_files.read(back)
    assert again.words == tuple(SPOKEN)
    np.testing.assert_array_equal(again.vectors_VD, vectors_VD)


@pytest.mark.filterwarnings("default")
def test_fasttext_starts_from_the_vectors(tmp_path):
    fasttext = pytest.importorskip("fasttext")
    path, texts = tmp_path / "vectors.vec", tmp_path / "texts.txt"
    vectors_VD = np.random.default_rng(1).standard_normal((len(SPOKEN), 7)).astype(np.float32)
    vector_files.write(path, SPOKEN, vectors_VD)
    texts.write_text("__label__a cat dög\n__label__b 日本 naïve\n", encoding="utf-8")
    options = {"epoch": 0, "minCount": 1, "thread": 1, "verbose": 0}
    model = fasttext.train_supervised(str(texts), dim=7, pretrainedVectors=str(path), **options)
    for word in ("cat", "dög", "日本", "naïve"):
        np.testing.assert_allclose(model.get_word_vector(word), vectors_VD[SPOKEN.index(word)], rtol=1e-6)


def test_an_archive_with_other_arrays_and_compression_is_read(tmp_path):
    path = Path(tmp_path / "vectors.npz")
    np.savez_compressed(path, words=np.array(["a", "b"]), vectors=VECTORS, counts=np.array([5, 3]))
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 3
    assert vector_files.read(path).words == ("a", "b")
