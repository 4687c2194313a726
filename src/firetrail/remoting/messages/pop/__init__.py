"""The headers, bodies and receipts of POP consumption."""
