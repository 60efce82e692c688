"""Benchmarks: run by hand or by their make targets, never by `make test`."""
