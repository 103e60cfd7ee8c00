"""What the events themselves say of a table's schema: inferred in Spark workers, merged in the driver.

    options.py       what is looked at, as a lane is told
    sensor.py        in a worker: blocks in, profiles out
    structure.py     a kernel that gives JSON documents of one structure one number
    shapes.py        which paths and types a JSON document has; objects with many keys are maps
    values.py        ranges, enumerations and formats of a column
    profile.py       what is known of a table, and how two such are merged
    jsonschema.py    a profile as JSON Schema 2020-12

Nothing here reads or writes anything: results travel with receipts and are kept in the state store (docs/sensing.md).
"""

from tidemill.schema.sensing.jsonschema import json_schema
from tidemill.schema.sensing.options import DeclaredColumn, SensingOptions
from tidemill.schema.sensing.profile import ColumnProfile, Spot, TableProfile, Tally
from tidemill.schema.sensing.sensor import Sensed, Sensor, SensorCache, unpack

__all__ = [
    "ColumnProfile",
    "DeclaredColumn",
    "Sensed",
    "SensingOptions",
    "Sensor",
    "SensorCache",
    "Spot",
    "TableProfile",
    "Tally",
    "json_schema",
    "unpack",
]
