"""Transactional messages: half messages, their ends, and the checks of producers."""
