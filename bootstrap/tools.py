"""The command ``kafka-delta-express``: for use before there is a pipeline, and to inspect one.

``config`` and ``markers`` are also subcommands of ``bootstrap``; the services are commands of their own, because each
can be installed without the other.
"""

import sys

from bootstrap.config.commands import app as config_app
from bootstrap.markers.commands import app as markers_app
from common.cli import new_app, run

app = new_app(
    "Draft a config, and inspect the stage. The services are `stage-writer` and `delta-loader`.",
    "kafka-delta-express config init pipeline.yaml",
    "kafka-delta-express markers ls pipeline.yaml",
)
app.add_typer(config_app, name="config")
app.add_typer(markers_app, name="markers")


def main() -> None:
    sys.exit(run(app))


if __name__ == "__main__":
    main()
