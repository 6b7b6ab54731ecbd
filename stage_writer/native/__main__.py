"""`python -m stage_writer.native`: compile the reader where it is missing, as `make setup` and an image do.

A failure is not an error: the writer works without it, at many times the cost of a message.
"""

import sys

from stage_writer.native.compiler import CompileError, compile_library
from stage_writer.native.library import library_path, load


def main() -> None:
    path = library_path()
    try:
        if not path.exists():
            compile_library(path)
        load(path)
    except (CompileError, OSError) as error:
        sys.stderr.write(
            f"The native readers could not be built; the writer works without them, at many times the cost:\n{error}\n"
        )


if __name__ == "__main__":
    main()
