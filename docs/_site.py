"""What the site holds besides this folder, for mkdocs: the files that its pages link to, such as published rows and
sources, and two pages from the top of the repository.

Links are written as they stand in the repository, where people read these pages too, and turned here.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_TOP = Path(__file__).resolve().parent.parent
_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")
_LINK = re.compile(r"\]\(([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = [_TOP / name for name in _PAGES]
    sources = [*pages, *(Path(page.abs_src_path) for page in files.documentation_pages() if page.abs_src_path)]
    for path in [*pages, *sorted(_linked(sources) - {*sources})]:
        files.append(File.generated(config, path.relative_to(_TOP).as_posix(), abs_src_path=str(path)))
    return files


def _linked(pages: list[Path]) -> set[Path]:
    """The repository's files outside this folder that some page leads to."""
    found = {(page.parent / target).resolve() for page in pages for target in _LINK.findall(page.read_text())}
    here = Path(__file__).resolve().parent
    return {path for path in found if path.is_file() and path.is_relative_to(_TOP) and not path.is_relative_to(here)}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """In the site the top of the repository and this folder are one."""
    if page.file.src_uri in _PAGES:
        return markdown.replace("](docs/", "](")
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"](../{up}", f"]({up}")
