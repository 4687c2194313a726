"""Files of fixed size: segments, queues of segments, and the thread that allocates them."""
