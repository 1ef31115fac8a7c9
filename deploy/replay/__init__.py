"""What the log lets one do with the past: verify it, ask it, and try it again under other rules."""
