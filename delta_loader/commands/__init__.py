"""The commands of ``delta-loader``, one module each: a typer function that wires the parts and shows the results."""
