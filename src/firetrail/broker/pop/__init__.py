"""POP consumption: a popped message is invisible to others until its time is over."""
