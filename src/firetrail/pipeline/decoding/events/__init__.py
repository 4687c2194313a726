"""Decoders of CDC events, and the adapters of the tools that write them."""
