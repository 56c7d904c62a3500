"""moefarm's layers inside frameworks that run whole models."""
