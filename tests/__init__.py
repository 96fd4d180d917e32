from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # of the repository


def published_files() -> list[Path]:
    """Return all published results files, those of older definitions among them."""
    return [path for folder in ("results", "results/archive") for path in sorted((ROOT / folder).glob("*.jsonl"))]
