"""The scores of models, one file per metric."""
