"""Our own certificate authority for the webhook and the bus, and the passwords of the bus: for clusters without cert-manager."""
