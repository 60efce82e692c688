"""The steps that bring a ledger's database from any earlier version to this one."""
