"""``python -m tests.fuzz [--seconds N] [--seed N]`` (`make fuzz`), or ``python -m tests.fuzz INPUT`` for one input."""

import argparse
import resource
import sys
import tempfile
from pathlib import Path

FOUND = Path("build/fuzz")
MEMORY = 2048
"""MiB that one input may make the process use."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("input", nargs="?", type=Path, help="try this input, and nothing else")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="try the same inputs each time; 0: other ones")
    parser.add_argument("--corpus", type=Path, help="a folder to begin with and to keep inputs in")
    arguments = parser.parse_args()
    if arguments.input is not None:
        from tests.fuzz import decoder

        decoder.check(arguments.input.read_bytes())
        return 0
    try:
        import atheris
    except ImportError:
        sys.stderr.write("atheris is not installed: pip install 'kafka-delta-express[fuzz]' (Linux on x86-64)\n")
        return 2
    with atheris.instrument_imports(include=["stage_writer.decode", "stage_writer.shape"]):
        from tests.fuzz import decoder
    FOUND.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus = arguments.corpus or Path(folder, "corpus")
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(decoder.SEEDS):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        words = Path(folder, "words")
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in decoder.WORDS))
        options = [f"-max_total_time={arguments.seconds}", f"-dict={words}", f"-artifact_prefix={FOUND}/"]
        options += [f"-seed={arguments.seed}", f"-rss_limit_mb={_peak_before() + MEMORY}"]
        atheris.Setup(
            [sys.argv[0], *options, "-max_len=4096", "-timeout=60", "-print_final_stats=1", str(corpus)], decoder.check
        )
        atheris.Fuzz()  # ends the process
    return 0


def _peak_before() -> int:
    """The peak memory in MiB that Linux counts for this process so far.

    A process that starts another by vfork hands its own peak down, and libFuzzer compares the peak with its limit: a
    large test process would have each input found guilty.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogatepass"))


if __name__ == "__main__":
    sys.exit(main())
