"""The former name of `tidemill.contracts`, for components of other packages that were written against it."""

from tidemill.contracts import *  # noqa: F403
