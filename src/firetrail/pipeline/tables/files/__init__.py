"""Files of a table: columns, Parquet files, commits of Delta, and the manifest."""
