"""Schemas of tables: types of columns, how they are written, and how they are inferred."""
