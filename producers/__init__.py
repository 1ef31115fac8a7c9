"""What speaks: parts that turn the outside world into events. They never import consumers, nor each other."""
