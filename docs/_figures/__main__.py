"""Write the tables, pictures and reference pages that are made from rows and from the parser.

python -m docs._figures            write them
python -m docs._figures --check    exit with 1 if a page is not current
"""

import sys

from docs._figures import pages, pictures


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    changed = {path: text for path, text in pages.made().items() if not path.exists() or path.read_text() != text}
    for path, text in changed.items():
        if not arguments:
            path.write_text(text)
        print(f"{path.relative_to(pages.TOP)}: {'not current' if arguments else 'written'}")
    if not arguments:
        pictures.write(pages.TOP / "docs", pages.TOP / "results")
    return int(bool(changed and arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
