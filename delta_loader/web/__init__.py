"""The loader's HTTP pages."""
