"""One module a step, named after its revision."""
