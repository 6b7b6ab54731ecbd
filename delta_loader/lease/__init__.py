"""The lease by which one loader at a time loads a stream: its rules, and the thread that holds it."""
