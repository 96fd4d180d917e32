"""What models are scored by, one file a metric."""
