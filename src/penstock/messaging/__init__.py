"""Messages, deliveries, settlements, and the Protocols that other packages implement."""
