"""Firetrail and the Java message store measured side by side; ``make bench`` runs it."""
