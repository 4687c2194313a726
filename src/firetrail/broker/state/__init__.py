"""What a broker keeps in the ``config`` folder: topics, groups and offsets."""
