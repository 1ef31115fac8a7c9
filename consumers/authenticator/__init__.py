"""The authenticator: tells the bus which node an agent speaks for, by the token of its service account."""
