"""The HTTPS front door: admission reviews come in from the API server and go to whoever answers on the bus. It holds no state."""
