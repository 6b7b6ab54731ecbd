"""The ways by which staged rows reach a table: which one a table takes, and whether what is staged fits it."""
