"""The jobs of ``firetrail pipeline``, each also a function over DataFrames."""
