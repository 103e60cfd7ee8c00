"""Messages of flows.proto."""

from tidemill.api.proto import messages

globals().update(messages("flows"))
