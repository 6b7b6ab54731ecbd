"""The table services around their pure part: facts out of logs, runs, and the thread that has them on a schedule."""
