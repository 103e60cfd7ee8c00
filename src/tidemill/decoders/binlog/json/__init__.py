"""MySQL's binary JSON to the text that the server prints: documents by column, text its kernel, value one by one."""
