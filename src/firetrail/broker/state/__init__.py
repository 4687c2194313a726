"""The tables of a broker in the ``config`` folder: topics, groups and offsets."""
