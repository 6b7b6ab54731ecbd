"""Read-only proofs and answers: ``delta-loader verify`` and ``delta-loader explain``."""
