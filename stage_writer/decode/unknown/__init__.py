"""Undeclared fields: found, kept in the rescue column, offered as columns, and read into gained columns."""
