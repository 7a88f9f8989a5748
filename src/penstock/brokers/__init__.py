"""Where messages wait: one module a broker, `rules` for what the embedded ones agree on."""
