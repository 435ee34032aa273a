"""Multi-version concurrency control: versions, revisions, ranges, transactions, compaction (contract §1-5)."""
