"""Keeps as many workers of each ``TensorFusionWorkload`` as it wants: makes what is missing, removes what is too much."""
