"""Values of JSON and of text as values of columns."""
