"""YAML to validated pipelines. `load` is the way in; `json_schema` and `mask` are for showing.

document     YAML into plain data, with the line of every path; expand puts variables into its text
environment  fields from environment variables
spec         what may stand in a document: a model for each section; duration reads 1m
resolve      a document into a checked spec; explain and problem say what is wrong with it
pipeline     a pipeline ready to run
occupied     two sinks that write to one place
posted       documents that came over the API; confine is what they may reach on this machine
notes        what is right and yet not what one might expect; advice is what can be pasted
jsonschema   JSON Schema for editors
secrets      a configuration without its secrets
"""

from tidemill.config.jsonschema import json_schema
from tidemill.config.pipeline import Pipeline, load, load_all, load_environment
from tidemill.config.problem import DocumentError, Problem
from tidemill.config.secrets import mask, mask_dsn
from tidemill.config.spec import PipelineSpec

__all__ = [
    "DocumentError",
    "Pipeline",
    "PipelineSpec",
    "Problem",
    "json_schema",
    "load",
    "load_all",
    "load_environment",
    "mask",
    "mask_dsn",
]
