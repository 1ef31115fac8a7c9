"""Brings what runs of a pool's components to what the pool asks for, in batches, and stops when that goes wrong."""
