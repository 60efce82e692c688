"""What was used, by whom, exactly once: the audit journal and the ledger that is taken from it."""
