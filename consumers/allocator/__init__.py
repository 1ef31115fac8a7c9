"""The allocator: pure decisions in :mod:`consumers.allocator.engine`, and the shell that commits them to the ledger."""
