"""Evidence of what a store held: its inventory, its catalog, and lost or removed files."""
