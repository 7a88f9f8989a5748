"""Ready-made transforms for change data capture: rows of Debezium and AWS DMS, to be merged by key.

`debezium`, `debezium_flattened` and `dms` are transforms with their default options, which a command can name
(``--transform penstock.transforms:debezium``); `Debezium` and `Dms` make others. Each adds the columns ``_op`` and
``_position``, and `merge` returns the `Merge` that uses them. Spark is imported when a batch runs.
"""

from penstock.transforms.debezium import Debezium
from penstock.transforms.dms import Dms

debezium = Debezium()
debezium_flattened = Debezium(flattened=True)
dms = Dms()

__all__ = ["Debezium", "Dms", "debezium", "debezium_flattened", "dms"]
