"""What is said on the bus: typed events, requests, ledger records and exact units.

Nothing here does I/O or imports another part of gpubus. Amounts are integers in the unit their name ends with: ``_milli``
(thousandths of a TFLOPS, of a core, or of one GPU), ``_bytes``, ``_us`` (microseconds), ``_mw`` (milliwatts).
"""
