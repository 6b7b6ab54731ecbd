"""``markers ls|show|verify``: the chains of done markers, for people. They look, and change nothing."""
