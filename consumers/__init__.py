"""What decides and acts on events. Consumers never import producers, nor each other."""
