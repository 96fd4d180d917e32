"""Downloads, against a server of the test's own: what comes whole, cut, changed, or not at all."""

import hashlib
import http.server
import io
import os
import stat
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from vocabench.harness.datasets import ptb, text8, wikitext_2, wikitext_103
from vocabench.harness.datasets.shared import catalogue, downloads, local_files
from vocabench.harness.datasets.shared.downloads import Download
from vocabench.harness.datasets.text import corpora
from vocabench.harness.datasets.text.published import Published
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("VOCABENCH_DATA", raising=False)
    monkeypatch.setattr(downloads, "_TIMEOUT_SECONDS", 0.5)
    return tmp_path / "cache"


@pytest.fixture
def served():
    """(address, {path: (bytes, length that is announced)}): a path without an entry is not found."""
    contents: dict[str, tuple[bytes, int]] = {}
    finished = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/silent":
                finished.wait(5)
                return
            if self.path not in contents:
                self.send_error(404)
                return
            content, length = contents[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", contents
    finished.set()
    server.shutdown()
    thread.join()
    server.server_close()


def archive(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return buffer.getvalue()


SPLITS = {"w/train": b"the cat sat\n" * 50, "w/valid": b"the dog\n", "w/test": b"a cat\n"}
HOSTILE = {"../../escaped": b"outside", "/tmp/vocabench-absolute": b"outside", "w/extra": b"not asked for"}


def published(url, content, members=("w/train", "w/valid", "w/test"), **more):
    names = {member: member.removeprefix("w/") for member in members}
    download = Download(f"{url}/w.zip", hashlib.sha256(content).hexdigest(), names)
    return Published("w", {name: name for name in names.values()}, "lines", "none", (download,), **more)


def test_a_download_is_checked_unpacked_and_kept(served, cache, tmp_path):
    url, contents = served
    content = archive(SPLITS | HOSTILE)
    contents["/w.zip"] = content, len(content)
    corpus = published(url, content)
    assert not corpus.is_here()
    lines = []
    text = corpus.text(lines.append)
    assert {split: path.read_bytes() for split, path in text.files.items()} == {
        name.removeprefix("w/"): part for name, part in SPLITS.items()
    }
    assert any("w.zip" in line and "MiB" in line for line in lines)
    assert corpus.is_here()
    contents.clear()
    assert corpus.text(print).files == text.files
    # Only what was asked for came out of the archive, and nothing outside its folder.
    assert sorted(os.listdir(text.files["train"].parent)) == ["manifest.json", "test", "train", "valid"]
    assert not list(tmp_path.parent.rglob("escaped"))
    assert not Path("/tmp/vocabench-absolute").exists()


def test_a_damaged_copy_is_fetched_again(served):
    url, contents = served
    content = archive(SPLITS)
    contents["/w.zip"] = content, len(content)
    corpus = published(url, content)
    corpus.text(print).files["train"].write_bytes(b"changed")
    assert not corpus.is_here()
    assert corpus.text(print).files["train"].read_bytes() == SPLITS["w/train"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: (content[:-9] + b"x" * 9, len(content)), r"sha256 is \w{64}, not \w{64}"),
        (lambda content: (content[:100], len(content)), "cut short|IncompleteRead"),
        (lambda content: (b"", 0), "sha256 is"),
        (lambda content: (b"<html>moved</html>", 18), "sha256 is"),
    ],
)
def test_a_download_that_is_not_the_file(served, cache, change, message):
    url, contents = served
    content = archive(SPLITS)
    contents["/w.zip"] = change(content)
    with pytest.raises(BadInput, match=message) as caught:
        published(url, content).text(print)
    assert f"download of {url}/w.zip" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_server_that_does_not_answer(served, tmp_path):
    url, _ = served
    for address, message in {
        f"{url}/absent": "Not Found",
        f"{url}/silent": "timed out",
        "http://127.0.0.1:9/refused": "refused",
        (tmp_path / "absent").as_uri(): "No such file",
        "nonsense/w": "unknown url type",
    }.items():
        with pytest.raises(BadInput, match=message):
            Download(address, "0" * 64).into(tmp_path, print)


def test_an_archive_without_its_members_or_damaged_inside(served):
    url, contents = served
    content = archive({"w/train": b"a\n"})
    broken = bytearray(archive(SPLITS))
    broken[40:60] = bytes(20)
    not_utf8 = archive({"ä": b""}).replace("ä".encode(), b"\xff\xff")  # a name that says it is
    cases = (
        (content, "w/valid"),
        (bytes(broken), "archive"),
        (not_utf8, "archive .*utf-8"),
        (b"not a zip", "not a zip file"),
    )
    for sent, message in cases:
        contents["/w.zip"] = sent, len(sent)
        with pytest.raises(BadInput, match=message):
            published(url, sent).text(print)


def linked(members, target):
    """An archive one of whose members is a symbolic link."""
    buffer = io.BytesIO(archive(members))
    with zipfile.ZipFile(buffer, "a") as opened:
        link = zipfile.ZipInfo("w/test")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        opened.writestr(link, target)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("members", "target", "message"),
    [
        ({}, "/etc/passwd", "w/test is no file"),
        ({}, "../../../escaped", "w/test is no file"),
        ({"w/train": bytes(5000)}, None, "w/train has 5,000 bytes, more than 4,000"),
    ],
)
def test_a_member_that_is_a_link_or_too_large_is_refused(served, cache, monkeypatch, members, target, message):
    url, contents = served
    own = SPLITS | members
    content = archive(own) if target is None else linked({name: own[name] for name in ("w/train", "w/valid")}, target)
    contents["/w.zip"] = content, len(content)
    monkeypatch.setattr(downloads, "_MOST_BYTES", 4000)
    with pytest.raises(BadInput, match=message):
        published(url, content).text(print)
    assert not [path for path in cache.rglob("*") if path.is_file() or path.is_symlink()]


def test_a_server_that_sends_without_end_is_left(served, cache, monkeypatch):
    url, contents = served
    contents["/w.zip"] = bytes(100_000), 100_000
    monkeypatch.setattr(downloads, "_MOST_BYTES", 4000)
    with pytest.raises(BadInput, match="more than 4,000 bytes came"):
        published(url, archive(SPLITS)).text(print)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_length_that_is_no_number_is_not_believed(served):
    url, contents = served
    content = archive(SPLITS)
    contents["/w.zip"] = content, "many"
    assert published(url, content).text(print).files["test"].read_bytes() == SPLITS["w/test"]


@pytest.mark.parametrize("manifest", ["[]", "3", '{"../../../etc/passwd": "0"}', '{"\\u0000": "0"}', "[" * 100_000, ""])
def test_a_manifest_of_another_form_is_no_whole_folder(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest)
    assert not cache_folder.is_whole(tmp_path)


def test_a_full_disk(served, cache, monkeypatch):
    url, contents = served
    content = archive(SPLITS)
    contents["/w.zip"] = content, len(content)

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(downloads.shutil, "copyfileobj", no_space)
    with pytest.raises(BadInput, match=r"cache folder .*No space left on device.*VOCABENCH_CACHE"):
        published(url, content).text(print)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_files_or_the_archive_in_the_users_own_folder(tmp_path, monkeypatch):
    content = archive(SPLITS)
    corpus = published("http://127.0.0.1:9", content)
    own = tmp_path / "data" / "w"
    own.mkdir(parents=True)
    monkeypatch.setenv("VOCABENCH_DATA", str(tmp_path / "data"))
    (own / "w.zip").write_bytes(content)
    assert corpus.text(print).files["valid"].read_bytes() == SPLITS["w/valid"]
    (own / "w.zip").write_bytes(content + b"x")
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "another"))
    with pytest.raises(BadInput, match=r"w\.zip: sha256 is"):
        corpus.text(print)
    for name in ("train", "valid", "test"):
        (own / name).write_bytes(b"own\n")
    assert corpus.text(print).files["train"] == own / "train"
    checked = published("http://127.0.0.1:9", content, checksums={"train": hashlib.sha256(b"own\n").hexdigest()})
    assert checked.text(print).files["train"] == own / "train"
    (own / "train").write_bytes(b"changed\n")
    with pytest.raises(BadInput, match=r"train: sha256 is \w+, not \w+: allowed: the file as published"):
        checked.text(print)


def test_a_file_without_an_archive(tmp_path):
    source = tmp_path / "from" / "one.txt"
    source.parent.mkdir()
    source.write_bytes(b"as it is\n")
    download = Download(source.as_uri(), hashlib.sha256(b"as it is\n").hexdigest())
    corpus = Published("one", {"train": "one.txt", "valid": "one.txt"}, "lines", "none", (download,))
    assert corpus.text(print).files["train"].read_bytes() == b"as it is\n"


def test_the_end_of_an_endless_line_is_held_out(tmp_path, monkeypatch):
    own = tmp_path / "data" / "w"
    own.mkdir(parents=True)
    monkeypatch.setenv("VOCABENCH_DATA", str(tmp_path / "data"))
    content = b" " + b"alpha beta gamma " * 100
    (own / "train").write_bytes(content)
    corpus = published("http://127.0.0.1:9", b"", ("w/train",), held_out=500)
    files = corpus.text(print).files
    assert set(files) == {"train", "valid"}
    parts = [files[split].read_bytes() for split in ("train", "valid")]
    assert b"".join(parts) == content
    assert 494 <= len(parts[1]) <= 500
    assert parts[1].split()[0] in {b"alpha", b"beta", b"gamma"}
    (own / "train").write_bytes(b"a b")
    with pytest.raises(BadInput, match="3 bytes: allowed: more than the 500 held out"):
        corpus.text(print)


def test_what_must_be_the_users_own_says_where():
    with pytest.raises(BadInput, match=r"VOCABENCH_DATA=FOLDER, with eltec-eng/train\.txt"):
        corpora.load("eltec-eng")
    with pytest.raises(BadInput, match="'text8-prefix' is not here"):
        catalogue.verify("text8-prefix", print)


@pytest.mark.parametrize("module", [ptb, text8, wikitext_2, wikitext_103])
def test_every_download_has_a_checksum_and_brings_every_file(module):
    corpus = module.CORPUS
    brought = set()
    for download in corpus.downloads:
        assert len(bytes.fromhex(download.sha256)) == 32
        assert download.url.startswith(("https://", "http://mattmahoney.net/"))
        brought |= set(download.members.values()) or {download.name}
    assert set(corpus.files.values()) <= brought
    assert set(corpus.checksums) <= brought


needs_data = pytest.mark.skipif("VOCABENCH_DATA" not in os.environ, reason="VOCABENCH_DATA is not set")
DATA = os.environ.get("VOCABENCH_DATA", "")


@needs_data
def test_text8_prefix(monkeypatch):
    monkeypatch.setenv("VOCABENCH_DATA", DATA)
    if local_files.local_folder("text8-prefix") is None:
        pytest.skip("no text8-prefix below VOCABENCH_DATA")
    corpus = corpora.load("text8-prefix", vocab=10_000)
    assert len(corpus.words) == 10_000
    assert corpus.words[:3] == ["<unk>", "the", "of"]
    assert "<eos>" not in corpus.words
    assert set(corpus.splits) == {"train", "valid"}
    assert corpus.counts_V.sum() == len(corpus.splits["train"])
    assert np.array_equal(np.bincount(corpus.splits["train"]), corpus.counts_V)
    assert len(catalogue.verify("text8-prefix", print)) == 64
