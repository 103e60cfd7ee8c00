"""Tidemill: change data capture on Spark. One YAML file, every change in order, nothing lost."""

__version__ = "0.1.0"
