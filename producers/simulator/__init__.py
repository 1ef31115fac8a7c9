"""A cluster that exists on the bus only: nodes, GPUs, pods that come and go, and the usage they would cause."""
