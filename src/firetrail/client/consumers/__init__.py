"""The consumers: push, pull and simple, and what they share."""
