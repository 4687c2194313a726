"""The root folder of a store: who holds it, its file sizes, its positions on disk."""
