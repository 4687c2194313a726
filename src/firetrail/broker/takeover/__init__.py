"""Data that a Java broker left in a folder that Firetrail takes over."""
