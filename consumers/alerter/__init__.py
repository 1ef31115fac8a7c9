"""Alert rules, evaluated on server-side ticks by any number of processes."""
