"""One row per request, and the headers and bodies of all commands."""
