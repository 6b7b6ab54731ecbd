"""The demo: real flights, a real broker, the real programs."""
