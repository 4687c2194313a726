"""Storing messages: checks, drafts and the calls that append them."""
