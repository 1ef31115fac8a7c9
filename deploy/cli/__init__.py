"""The ``gpubus`` command."""
