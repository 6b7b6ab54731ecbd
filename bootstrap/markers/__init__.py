"""``markers ls|show|verify``: inspect the chains of done markers. Read-only."""
