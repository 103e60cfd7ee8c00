"""Messages of operations.proto."""

from tidemill.api.proto import messages

globals().update(messages("operations"))
