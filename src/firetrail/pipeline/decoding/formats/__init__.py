"""Decoders of the formats of bodies that are rows."""
