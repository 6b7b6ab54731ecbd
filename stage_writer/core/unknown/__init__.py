"""Fields that are not declared: found, kept in the rescue column, offered as columns, and read into those gained."""
