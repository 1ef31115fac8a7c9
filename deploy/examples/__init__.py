"""Programs that build on the bus, short enough to read and to start from. Each runs with ``python -m deploy.examples.NAME``."""
