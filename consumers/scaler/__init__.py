"""Capacity: requests that fit what is used, and what a pool lacks or has to spare."""
