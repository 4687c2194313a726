"""The folders of lakes, local or remote: their files, and the manifest."""
