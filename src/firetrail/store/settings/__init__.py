"""The settings of a store: one table, its rules, and what may change while it is open."""
