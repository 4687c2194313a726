"""The audit job: every record, unit and index entry checked."""
