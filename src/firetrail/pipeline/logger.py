"""The logger of plans and warnings about them, whose lines Spark shows."""

import logging

LOGGER = logging.getLogger("firetrail.pipeline")
LOGGER.setLevel(logging.INFO)  # Spark collects INFO from its workers, Python's default is WARNING
