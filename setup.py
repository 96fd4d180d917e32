"""The README as the description of the package, with links that also work outside the repository."""

import re
from pathlib import Path

from setuptools import setup

PAGES = "https://github.com/vocabench/vocabench/blob/main/"
PICTURES = "https://raw.githubusercontent.com/vocabench/vocabench/main/"


def description(readme: str) -> str:
    """Return the README with absolute links and without the comments from which its tables are made."""
    text = re.sub(r"<!--.*?-->\n?", "", readme, flags=re.DOTALL)
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{PICTURES}", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{PAGES}", text)


setup(
    long_description=description(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
