"""Where metrics are kept: the nine ``tf_*`` tables, in GreptimeDB or in an embedded DuckDB, behind one interface."""
