"""``python -m tests.chaos.optimize TABLE``: an operator's OPTIMIZE with delta-rs, configured by the environment.

delta-rs creates its commits conditionally too, so it may write to a table on S3 next to Delta's own drivers.
"""

import json
import sys

import typer
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError


def main(table: str) -> None:
    """Compact, and print the result."""
    options = {"AWS_ALLOW_HTTP": "true"}
    try:
        figures = DeltaTable(table, storage_options=options).optimize.compact()
    except TableNotFoundError:
        typer.echo("there is no table yet")
    except (DeltaError, OSError) as error:
        # The store is being killed meanwhile; an operator would try again.
        typer.echo(f"gave up: {str(error)[:300]}")
    else:
        typer.echo(json.dumps({"added": figures["numFilesAdded"], "removed": figures["numFilesRemoved"]}))


if __name__ == "__main__":
    main(sys.argv[1])
