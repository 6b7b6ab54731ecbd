"""When to load, and what: by the schedule, on writers' notifications, or on request."""
