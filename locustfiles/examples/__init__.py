"""Locustfiles to start from, one idea each; `tests/runs/test_examples.py` runs them all."""
