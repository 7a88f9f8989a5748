"""Object handlers: a user's function called once per object, under the same protocol as pipelines but without Spark.

Modules: `declaration` (the settings of a handler, and the context of a call), `stream` (the object passed to the
function, with its content and its quarantined lines), `engine` (one call, and how its end is classified), `handler`
(the interface to the worker).
"""
