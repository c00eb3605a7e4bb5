"""What the API shows: handlers of the informers, which keep records and ledger true to it."""
