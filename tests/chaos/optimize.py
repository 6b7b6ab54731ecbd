"""``python -m tests.chaos.optimize TABLE``: what an operator does now and then, with delta-rs, told by the environment.

delta-rs creates its commits under a condition too, so it may write to a table on S3 beside Delta's own drivers.
"""

import json
import sys

import typer
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError


def main(table: str) -> None:
    """Compact; says what came of it."""
    options = {"AWS_ALLOW_HTTP": "true"}
    try:
        figures = DeltaTable(table, storage_options=options).optimize.compact()
    except TableNotFoundError:
        typer.echo("there is no table yet")
    except (DeltaError, OSError) as error:
        # The store is being killed under it; an operator would come again.
        typer.echo(f"gave up: {str(error)[:300]}")
    else:
        typer.echo(json.dumps({"added": figures["numFilesAdded"], "removed": figures["numFilesRemoved"]}))


if __name__ == "__main__":
    main(sys.argv[1])
