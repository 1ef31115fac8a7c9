"""Benchmarks: ``make bench``. Numbers are compared as ratios within one run, because machines are noisy."""
