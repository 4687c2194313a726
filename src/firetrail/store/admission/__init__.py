"""Messages before they are stored: drafts, and the gate and the fence that refuse them."""
