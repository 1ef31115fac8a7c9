"""The watcher: pods, nodes and custom resources become STATE, and what has to be done about pods becomes commands.

Any number of replicas may run at once. What each says is decided by comparing its view of the API server with what STATE
holds already, and STATE is replaced by compare-and-set and only by something newer, so a slow replica cannot turn it back.
"""
