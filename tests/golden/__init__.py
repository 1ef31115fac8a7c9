"""What earlier versions have written, kept to be read for ever."""
