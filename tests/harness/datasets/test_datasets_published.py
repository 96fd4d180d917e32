"""Downloads from a local server: complete, truncated, modified or missing files."""

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

from vocabench.harness import registry
from vocabench.harness.datasets.shared import catalogue, downloads
from vocabench.harness.datasets.shared.downloads import Download
from vocabench.harness.datasets.text import corpora
from vocabench.harness.datasets.text.published import PublishedText, user_folder
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
    """Return the address, and a dictionary of (content, announced length) by path; other paths are not found."""
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
HOSTILE = {"../../escaped": b"outside", "/tmp/vocabench-absolute": b"outside", "w/extra": b"not listed"}


def published(url, content, members=("w/train", "w/valid", "w/test"), **options):
    names = {member: member.removeprefix("w/") for member in members}
    download = Download(f"{url}/w.zip", hashlib.sha256(content).hexdigest(), names)
    return PublishedText("w", {name: name for name in names.values()}, "lines", "none", (download,), **options)


def test_a_download_is_verified_extracted_and_cached(served, cache, tmp_path):
    url, contents = served
    content = archive(SPLITS | HOSTILE)
    contents["/w.zip"] = content, len(content)
    corpus = published(url, content)
    assert not corpus.is_here()
    lines = []
    text = corpus.find(lines.append)
    assert {split: path.read_bytes() for split, path in text.files.items()} == {
        name.removeprefix("w/"): part for name, part in SPLITS.items()
    }
    assert any("w.zip" in line and "MiB" in line for line in lines)
    assert corpus.is_here()
    contents.clear()
    assert corpus.find(print).files == text.files
    # Only the listed members were extracted, and nothing was written outside the folder.
    assert sorted(os.listdir(text.files["train"].parent)) == ["manifest.json", "test", "train", "valid"]
    assert not list(tmp_path.parent.rglob("escaped"))
    assert not Path("/tmp/vocabench-absolute").exists()


def test_a_damaged_copy_is_downloaded_again(served):
    url, contents = served
    content = archive(SPLITS)
    contents["/w.zip"] = content, len(content)
    corpus = published(url, content)
    corpus.find(print).files["train"].write_bytes(b"changed")
    assert not corpus.is_here()
    assert corpus.find(print).files["train"].read_bytes() == SPLITS["w/train"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: (content[:-9] + b"x" * 9, len(content)), r"sha256 is \w{64}, not \w{64}"),
        (lambda content: (content[:100], len(content)), "cut short|IncompleteRead"),
        (lambda content: (b"", 0), "sha256 is"),
        (lambda content: (b"<html>moved</html>", 18), "sha256 is"),
    ],
)
def test_a_wrong_download_is_refused(served, cache, change, message):
    url, contents = served
    content = archive(SPLITS)
    contents["/w.zip"] = change(content)
    with pytest.raises(BadInput, match=message) as caught:
        published(url, content).find(print)
    assert f"download of {url}/w.zip" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_server_that_does_not_answer_is_a_one_line_error(served, tmp_path):
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


def test_a_damaged_archive_or_one_without_its_members_is_refused(served):
    url, contents = served
    content = archive({"w/train": b"a\n"})
    broken = bytearray(archive(SPLITS))
    broken[40:60] = bytes(20)
    not_utf8 = archive({"ä": b""}).replace("ä".encode(), b"\xff\xff")  # flagged as UTF-8
    cases = (
        (content, "w/valid"),
        (bytes(broken), "archive"),
        (not_utf8, "archive .*utf-8"),
        (b"not a zip", "not a zip file"),
    )
    for sent, message in cases:
        contents["/w.zip"] = sent, len(sent)
        with pytest.raises(BadInput, match=message):
            published(url, sent).find(print)


def linked(members, target):
    """Return an archive with a symbolic link as a member."""
    buffer = io.BytesIO(archive(members))
    with zipfile.ZipFile(buffer, "a") as opened:
        link = zipfile.ZipInfo("w/test")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        opened.writestr(link, target)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("members", "target", "message"),
    [
        ({}, "/etc/passwd", "w/test is not a regular file"),
        ({}, "../../../escaped", "w/test is not a regular file"),
        ({"w/train": bytes(5000)}, None, "w/train has 5,000 bytes, more than 4,000"),
    ],
)
def test_a_member_that_is_a_link_or_too_large_is_refused(served, cache, monkeypatch, members, target, message):
    url, contents = served
    parts = SPLITS | members
    regular = {name: parts[name] for name in ("w/train", "w/valid")}
    content = archive(parts) if target is None else linked(regular, target)
    contents["/w.zip"] = content, len(content)
    monkeypatch.setattr(downloads, "_MOST_BYTES", 4000)
    with pytest.raises(BadInput, match=message):
        published(url, content).find(print)
    assert not [path for path in cache.rglob("*") if path.is_file() or path.is_symlink()]


def test_an_endless_download_is_aborted(served, cache, monkeypatch):
    url, contents = served
    contents["/w.zip"] = bytes(100_000), 100_000
    monkeypatch.setattr(downloads, "_MOST_BYTES", 4000)
    with pytest.raises(BadInput, match="more than 4,000 bytes received"):
        published(url, archive(SPLITS)).find(print)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_an_invalid_content_length_is_ignored(served):
    url, contents = served
    content = archive(SPLITS)
    contents["/w.zip"] = content, "many"
    assert published(url, content).find(print).files["test"].read_bytes() == SPLITS["w/test"]


@pytest.mark.parametrize("manifest", ["[]", "3", '{"../../../etc/passwd": "0"}', '{"\\u0000": "0"}', "[" * 100_000, ""])
def test_a_malformed_manifest_makes_a_cache_folder_invalid(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest)
    assert not cache_folder.is_whole(tmp_path)


def test_a_full_disk_is_a_one_line_error(served, cache, monkeypatch):
    url, contents = served
    content = archive(SPLITS)
    contents["/w.zip"] = content, len(content)

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(downloads.shutil, "copyfileobj", no_space)
    with pytest.raises(BadInput, match=r"cache folder .*No space left on device.*VOCABENCH_CACHE"):
        published(url, content).find(print)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_the_users_folder_may_hold_the_files_or_the_archive(tmp_path, monkeypatch):
    content = archive(SPLITS)
    corpus = published("http://127.0.0.1:9", content)
    folder = tmp_path / "data" / "w"
    folder.mkdir(parents=True)
    monkeypatch.setenv("VOCABENCH_DATA", str(tmp_path / "data"))
    (folder / "w.zip").write_bytes(content)
    assert corpus.find(print).files["valid"].read_bytes() == SPLITS["w/valid"]
    (folder / "w.zip").write_bytes(content + b"x")
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "another"))
    with pytest.raises(BadInput, match=r"w\.zip: sha256 is"):
        corpus.find(print)
    for name in ("train", "valid", "test"):
        (folder / name).write_bytes(b"own\n")
    assert corpus.find(print).files["train"] == folder / "train"
    checked = published("http://127.0.0.1:9", content, checksums={"train": hashlib.sha256(b"own\n").hexdigest()})
    assert checked.find(print).files["train"] == folder / "train"
    (folder / "train").write_bytes(b"changed\n")
    with pytest.raises(BadInput, match=r"train: sha256 is \w+, not \w+: allowed: the file as published"):
        checked.find(print)


def test_a_download_without_an_archive_is_used_as_it_is(tmp_path):
    source = tmp_path / "from" / "one.txt"
    source.parent.mkdir()
    source.write_bytes(b"as it is\n")
    download = Download(source.as_uri(), hashlib.sha256(b"as it is\n").hexdigest())
    corpus = PublishedText("one", {"train": "one.txt", "valid": "one.txt"}, "lines", "none", (download,))
    assert corpus.find(print).files["train"].read_bytes() == b"as it is\n"


def test_the_end_of_a_single_long_line_is_held_out(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "w"
    folder.mkdir(parents=True)
    monkeypatch.setenv("VOCABENCH_DATA", str(tmp_path / "data"))
    content = b" " + b"alpha beta gamma " * 100
    (folder / "train").write_bytes(content)
    corpus = published("http://127.0.0.1:9", b"", ("w/train",), held_out=500)
    files = corpus.find(print).files
    assert set(files) == {"train", "valid"}
    parts = [files[split].read_bytes() for split in ("train", "valid")]
    assert b"".join(parts) == content
    assert 494 <= len(parts[1]) <= 500
    assert parts[1].split()[0] in {b"alpha", b"beta", b"gamma"}
    (folder / "train").write_bytes(b"a b")
    with pytest.raises(BadInput, match="3 bytes: allowed: more than the 500 held out"):
        corpus.find(print)


def test_a_dataset_that_users_must_provide_says_where():
    with pytest.raises(BadInput, match=r"VOCABENCH_DATA=FOLDER, with eltec-eng/train\.txt"):
        corpora.load("eltec-eng")
    with pytest.raises(BadInput, match="'text8-prefix' is not here"):
        catalogue.verify("text8-prefix", print)


@pytest.mark.parametrize("name", ["ptb", "text8", "wikitext-2", "wikitext-103"])
def test_every_download_has_a_checksum_and_contains_all_files(name):
    corpus = registry.dataset(name).origin
    assert isinstance(corpus, PublishedText)
    downloaded = set()
    for download in corpus.downloads:
        assert len(bytes.fromhex(download.sha256)) == 32
        assert download.url.startswith(("https://", "http://mattmahoney.net/"))
        downloaded |= set(download.members.values()) or {download.name}
    assert set(corpus.files.values()) <= downloaded
    assert set(corpus.checksums) <= downloaded


needs_data = pytest.mark.skipif("VOCABENCH_DATA" not in os.environ, reason="VOCABENCH_DATA is not set")
DATA = os.environ.get("VOCABENCH_DATA", "")


@needs_data
def test_text8_prefix_has_the_right_words(monkeypatch):
    monkeypatch.setenv("VOCABENCH_DATA", DATA)
    if user_folder("text8-prefix") is None:
        pytest.skip("no text8-prefix below VOCABENCH_DATA")
    corpus = corpora.load("text8-prefix", vocab=10_000)
    assert len(corpus.words) == 10_000
    assert corpus.words[:3] == ["<unk>", "the", "of"]
    assert "<eos>" not in corpus.words
    assert set(corpus.splits) == {"train", "valid"}
    assert corpus.counts_V.sum() == len(corpus.splits["train"])
    assert np.array_equal(np.bincount(corpus.splits["train"]), corpus.counts_V)
    assert len(catalogue.verify("text8-prefix", print)) == 64
