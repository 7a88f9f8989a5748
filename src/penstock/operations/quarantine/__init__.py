"""Look at the lines that could not be read, replay them, or dismiss them."""
