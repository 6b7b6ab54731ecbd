"""The commands of ``delta-loader``, one module each. Each is a function for typer that wires, and shows what came."""
