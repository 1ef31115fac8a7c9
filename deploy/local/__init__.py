"""Everything on one machine: an embedded bus of one server, or of three on loopback."""
