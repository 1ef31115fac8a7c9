"""The reconciler: compares the ledger with the API server, repairs what is provably safe, and reports the rest."""
