"""The only place where rooms are wired together."""
