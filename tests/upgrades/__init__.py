"""Objects as releases have written them, and as today's code reads them: `files/`, a folder for each release."""
