"""Checks that need a real GPU; `make test` does not run them."""
