"""The same pods under other rules: what would have become of them, afterwards or as they come. Nothing is bound."""
