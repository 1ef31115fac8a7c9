"""Carries evictions out: pods leave nodes for others that go before them."""
