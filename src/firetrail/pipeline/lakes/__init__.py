"""Folders of lakes, local or remote: their files, archives and manifests."""
