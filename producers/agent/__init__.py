"""The node agent: says what GPUs a node has, how they are, and who uses them."""
