"""Tables and figures of the documentation, made from published rows: `python -m docs._figures` writes them."""
