"""What Kubernetes says: our custom resources, the parts we read of its own kinds, and what a binding carries. No I/O."""
