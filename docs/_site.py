"""What the site holds besides this folder, for mkdocs: published rows, and two pages from the top of the repository.

Links are written as they stand in the repository, where people read these pages too, and turned here.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_TOP = Path(__file__).resolve().parent.parent
_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in [*(_TOP / name for name in _PAGES), *sorted((_TOP / "results").glob("*.jsonl"))]:
        files.append(File.generated(config, path.relative_to(_TOP).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """In the site the top of the repository and this folder are one."""
    if page.file.src_uri in _PAGES:
        return markdown.replace("](docs/", "](")
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"](../{up}", f"]({up}")
