"""From the record's columns to the table's rows: the steps of a stream, each a `Step` of `rows`."""
