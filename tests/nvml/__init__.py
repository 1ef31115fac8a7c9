"""A stand-in for NVIDIA's management library, in C, and the scenarios that it plays."""
