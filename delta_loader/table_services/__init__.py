"""The table services without their pure part: facts from logs, runs, and the thread that runs them on a schedule."""
