"""The inspector: sees what allocators see and says it to whoever asks. It decides about no pod and commits nothing."""
