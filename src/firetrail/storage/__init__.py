"""Files on the disk: the one seam to the operating system, segments, and what allocates them."""
