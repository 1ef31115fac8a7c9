"""Decides what becomes of pods at admission: which are ours, what changes in them, and which are refused with a sentence."""
