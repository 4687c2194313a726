"""The plan of a read: filters, ranges of positions, and the splits that tasks read."""
