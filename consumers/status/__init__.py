"""The status writer: the log's view written back to custom resources, for ``kubectl`` and for people."""
