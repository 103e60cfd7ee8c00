"""Tidemill: change data capture on Spark. One YAML file, every change in order, nothing lost."""

import os

from tidemill.kernel_cache import use_own_folder

__version__ = "0.1.0"

use_own_folder(os.path.dirname(__file__))
