"""The growth of files: the steps in which disk space is allocated ahead of the writes."""

PAGE_SIZE = 4096
"""The page size of the settings that count pages, independent of the machine's pages."""


class Growth:
    """The steps in which disk space is allocated: as much as is used already, within bounds.

    There are many ``scattered`` files, and they are mostly holes: only the pages of their mappings
    that are touched are read into memory, without read-ahead.
    """

    __slots__ = ("largest", "scattered", "smallest")

    def __init__(self, smallest: int, largest: int, *, scattered: bool = False) -> None:
        self.smallest = smallest
        self.largest = largest
        self.scattered = scattered

    def step(self, wrote: int) -> int:
        """Return the number of bytes to allocate when ``wrote`` bytes are used."""
        return min(max(wrote, self.smallest), self.largest)


LOG_GROWTH = Growth(1 << 20, 32 << 20)
QUEUE_GROWTH = Growth(PAGE_SIZE, 1 << 20, scattered=True)
