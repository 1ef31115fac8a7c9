"""GPUs as NVIDIA's management library tells them, through ``pynvml`` of the package ``nvidia-ml-py``."""
