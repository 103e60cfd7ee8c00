"""YAML to validated pipelines. `load` is the way in; `json_schema` and `masked` are for showing."""

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
