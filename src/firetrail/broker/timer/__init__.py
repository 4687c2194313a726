"""Messages with a delivery time: they wait in a topic of their own, and are delivered when due."""
