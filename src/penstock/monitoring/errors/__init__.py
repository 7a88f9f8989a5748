"""Report failures to the user's error hook and to error services."""
