"""The audit job: checks every record, unit and index entry of a store."""
