"""The calls of the service: one module for each subject, and the guard before them."""
