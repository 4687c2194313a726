"""The rebuild, repair, salvage and backup of stores."""
