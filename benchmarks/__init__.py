"""asv suites: thin look-ups into the rows of the harness's suite `asv`, measured once a commit and task."""
