"""The two halves of `penstock demo`: messages without Spark, then files on Spark. Each is killed once, and proved."""
