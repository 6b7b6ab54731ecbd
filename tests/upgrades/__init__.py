"""Objects as releases have written them, and what today's code makes of them: `files/`, a folder for each release."""
