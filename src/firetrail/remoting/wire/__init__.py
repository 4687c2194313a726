"""Commands as bytes: frames, their two forms of header, and the codes of the protocol."""
