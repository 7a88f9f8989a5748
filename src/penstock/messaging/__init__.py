"""The values that move (message, delivery, settlement) and the Protocols that other packages implement."""
