"""What a trace holds and what an analysis says: plain data, no computing and no files."""
