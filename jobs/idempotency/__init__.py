"""Keys, markers, locks and the ledger of external calls."""
