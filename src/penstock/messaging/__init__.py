"""What moves: messages, deliveries, settlements, and the Protocols that the other rooms meet through."""
