"""The folders of lakes, local or remote: their files, and the one that says what a lake holds."""
