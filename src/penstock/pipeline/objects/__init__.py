"""A user's function for each object: the protocol of pipelines without Spark.

Duties, a module each: `declaration` (what a user says of a function), `stream` (the object as the function gets it;
`spool` keeps its content, `quarantine` its bad lines), `context` (what else it gets), `calling` (one call, plain or
async), `engine` (from an object to what the protocol records), `denials` (when a refusal says nothing of the object),
`handler` (the seam to the worker).
"""
