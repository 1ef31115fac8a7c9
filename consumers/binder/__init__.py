"""The binder: carries decisions out in the API server, and sees to it that ledger and API server end up in agreement."""
