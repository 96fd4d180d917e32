"""asv suites: thin look-ups into the rows of one harness sweep a commit."""
